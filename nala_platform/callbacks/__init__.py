"""nala_platform.callbacks"""
