"""What ``trust_remote_code=True`` runs in a saved folder: a file that takes the classes from the installed package."""

from pathlib import Path

MODULE = "modeling_nala"
CLASSES = {
    "AutoConfig": "NaLaConfig",
    "AutoModel": "NaLaModel",
    "AutoModelForCausalLM": "NaLaForCausalLM",
    "AutoModelForQuestionAnswering": "NaLaForQuestionAnswering",
    "AutoModelForSequenceClassification": "NaLaForSequenceClassification",
    "AutoModelForTokenClassification": "NaLaForTokenClassification",
}
"""Hugging Face's entry point -> our class."""

AUTO_MAP = {entry: f"{MODULE}.{name}" for entry, name in CLASSES.items()}
"""``auto_map`` of ``config.json``."""

_NAMES = sorted(CLASSES.values())
_IMPORTED = ",\n        ".join(_NAMES)
_LISTED = ",\n    ".join(f'"{name}"' for name in _NAMES)
_SOURCE = f"""\
# Loads this model with transformers: AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True).
# The code of the model is in the Python package nala-platform.
try:
    from nala_platform.models.language import (
        {_IMPORTED},
    )
except ModuleNotFoundError as error:
    if error.name != "nala_platform":
        raise
    raise ModuleNotFoundError(
        "this model needs the package nala-platform, which is not installed here: pip install nala-platform",
        name="nala_platform",
    ) from error

__all__ = [
    {_LISTED},
]
"""


def write_remote_code(folder: Path) -> None:
    """Write the file that ``AUTO_MAP`` names."""
    (folder / f"{MODULE}.py").write_text(_SOURCE, encoding="utf-8")
