"""Runs on disk: folders, whole files, checkpoints, and what changed since a run was stopped.

Light: importing this loads no torch; `checkpoint_file`, which does, and `lock`, which wants a Unix, are imported by
name.
"""

from nala_platform.runs.files import save_figure, versions, write_atomic, write_json
from nala_platform.runs.folder import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    LAST,
    LOCK,
    METRICS,
    PREVIOUS,
    STAGED,
    SUMMARY,
    TOKENIZER,
    WEIGHTS,
    Run,
    find_folder,
    find_run,
    new_folder,
    take_folder,
)

__all__ = [
    "BEST",
    "CHECKPOINTS",
    "CONFIG",
    "LAST",
    "LOCK",
    "METRICS",
    "PREVIOUS",
    "STAGED",
    "SUMMARY",
    "TOKENIZER",
    "WEIGHTS",
    "Run",
    "find_folder",
    "find_run",
    "new_folder",
    "save_figure",
    "take_folder",
    "versions",
    "write_atomic",
    "write_json",
]
