"""nala_platform.models"""
