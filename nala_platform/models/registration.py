"""NaLaFormer's names in timm's registry."""

from timm.models import is_model, model_entrypoint, register_model

from nala_platform.models.variants import ENTRIES


def register_timm() -> None:
    """Make every size known to ``timm.create_model`` and ``timm.list_models``. A second call changes nothing."""
    for entry in ENTRIES:
        if not (is_model(entry.__name__) and model_entrypoint(entry.__name__) is entry):
            register_model(entry)
