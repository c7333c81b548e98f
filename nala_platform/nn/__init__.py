"""nala_platform.nn"""
