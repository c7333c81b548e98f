"""nala_platform.attention"""
