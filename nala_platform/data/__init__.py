"""nala_platform.data"""
