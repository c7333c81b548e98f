"""Study files: where they are, and YAML read as a person means it."""

from pathlib import Path
from typing import Any

from nala_platform import yaml_files
from nala_platform.errors import UserError, near

STUDIES = Path(__file__).parent


def find_study(name: str) -> Path:
    """The file that ``name`` means: a path that exists, or a study that is shipped.

    Raises:
        UserError: neither exists.
    """
    for candidate in (Path(name).expanduser(), STUDIES / name, STUDIES / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    shipped = sorted(path.stem for path in STUDIES.glob("*.yaml"))
    raise UserError(f"no study {name!r}{near(name, shipped)} Shipped: {', '.join(shipped)}; or give a path")


def read_settings(text: str, where: str) -> dict[str, Any]:
    """The keys of a study file.

    Raises:
        UserError: no YAML, or no keys; the message begins with ``where``.

    Examples:
        >>> read_settings("space: {lr: [1e-3, 2E4, '1e-3']}", "my.yaml")
        {'space': {'lr': [0.001, 20000.0, '1e-3']}}
    """
    return yaml_files.load_keys(text, where, example="task: and space:")
