"""NaLa: norm-aware linear attention (arXiv 2506.21137), on one platform for four tasks.

The public names, loaded when first used, so that the command line and the sweep engine can import light modules of this
package without paying for torch; and the only place that makes the models known to timm: importing this package, before
or after timm, is enough for ``timm.create_model("nalaformer_t")``.
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
    from nala_platform.models.nalaformer import NaLaFormer
    from nala_platform.models.segmenter import Segmenter

__all__ = ["ATTENTION", "DivergedError", "NaLaFormer", "Segmenter", "UserError", "nala_attention"]

_HOMES = {
    "ATTENTION": "nala_platform.attention",
    "DivergedError": "nala_platform.errors",
    "NaLaFormer": "nala_platform.models.nalaformer",
    "Segmenter": "nala_platform.models.segmenter",
    "UserError": "nala_platform.errors",
    "nala_attention": "nala_platform.attention",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register_timm() -> None:
    importlib.import_module("nala_platform.models.registration").register_timm()


class _AfterTimm:
    """Registers the models as soon as timm has been imported: importing timm here would load torch for all."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "timm":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            # only now: others look for the spec without importing, to see whether timm is installed
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not cls]
            execute(module)
            _register_timm()

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


if "timm" in sys.modules:
    _register_timm()
else:
    sys.meta_path.insert(0, _AfterTimm)  # type: ignore[arg-type]
