"""Data modules: one a file, each named by its class path in a configuration.

Here stands what all data shares; what is of pictures alone in `images`, what is of language alone in `language`.
"""
