"""The experiment definitions that `nala --task` reads: YAML files, one a task, and overlays."""
