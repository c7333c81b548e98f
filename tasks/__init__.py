"""The tasks: one training loop (`base`) and one module a task."""
