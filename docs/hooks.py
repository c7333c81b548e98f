"""Shows mkdocstrings the package as it is installed: with ``tasks/`` and ``sweeps/`` inside ``nala_platform``."""

import shutil
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority

ROOT = Path(__file__).parent.parent
_COPY = Path(tempfile.mkdtemp(prefix="nala-docs-"))


@event_priority(100)  # before mkdocstrings reads its own configuration
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Copy the sources into the layout of the installed package, and let mkdocstrings read the copy."""
    for source, target in (("nala_platform", ""), ("tasks", "tasks"), ("sweeps", "sweeps")):
        shutil.copytree(ROOT / source, _COPY / "nala_platform" / target, dirs_exist_ok=True)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(_COPY)]
    return config


def on_post_build(config: MkDocsConfig) -> None:
    """Remove the copy."""
    shutil.rmtree(_COPY)
