"""NaLa: norm-aware linear attention (arXiv 2506.21137), on one platform for four tasks.

The public names, loaded when first used, so that the command line and the sweep engine can import light modules of this
package without paying for torch; and the only place that makes the models known to timm and to Hugging Face: importing
this package, before or after those, is enough for ``timm.create_model("nalaformer_t")`` and ``AutoModelForCausalLM``.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nala_platform.attention import ATTENTION, nala_attention
    from nala_platform.errors import DivergedError, UserError
    from nala_platform.models.language import NaLaConfig, NaLaForCausalLM
    from nala_platform.models.nalaformer import NaLaFormer
    from nala_platform.models.segmenter import Segmenter
    from nala_platform.models.upscaler import Upscaler

__all__ = [
    "ATTENTION",
    "DivergedError",
    "NaLaConfig",
    "NaLaForCausalLM",
    "NaLaFormer",
    "Segmenter",
    "Upscaler",
    "UserError",
    "nala_attention",
]

_HOMES = {
    "ATTENTION": "nala_platform.attention",
    "DivergedError": "nala_platform.errors",
    "NaLaConfig": "nala_platform.models.language",
    "NaLaForCausalLM": "nala_platform.models.language",
    "NaLaFormer": "nala_platform.models.nalaformer",
    "Segmenter": "nala_platform.models.segmenter",
    "Upscaler": "nala_platform.models.upscaler",
    "UserError": "nala_platform.errors",
    "nala_attention": "nala_platform.attention",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register(name: str) -> None:
    getattr(importlib.import_module("nala_platform.models.registration"), name)()


# Registered as soon as these have been imported: importing them here would load torch for every command.
_REGISTRATIONS = {
    "timm": "register_timm",
    "transformers.models.auto.configuration_auto": "register_hf_config",
    "transformers.models.auto.modeling_auto": "register_hf_model",
    "nala_platform.models.language": "register_hf_model",  # it imports the one above, half-way through itself
}


class _Registrar:
    """An import hook that registers our names in a library when the library itself has been imported."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find as Python does, and let the loader register afterwards; others may look without importing."""
        if name not in _REGISTRATIONS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            _register(_REGISTRATIONS[name])

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Registrar)  # type: ignore[arg-type]
for _module, _name in _REGISTRATIONS.items():
    if _module in sys.modules:
        _register(_name)
