"""How published data sets lie on disk: from a folder to a list of samples.

A module a task holds the table of its layouts.
"""
