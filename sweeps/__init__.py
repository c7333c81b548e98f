"""Ready sweep studies: YAML files, one a study."""
