"""Data modules: one a file, each named by its class path in a configuration."""
