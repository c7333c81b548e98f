"""NaLaFormer's names in timm's registry."""

from timm.models import is_model, model_entrypoint, register_model

from nala_platform.models.variants import ENTRIES


def register_timm() -> None:
    """Make every size known to ``timm.create_model`` and ``timm.list_models``. A second call changes nothing."""
    for entry in ENTRIES:
        if not (is_model(entry.__name__) and model_entrypoint(entry.__name__) is entry):
            register_model(entry)


def register_hf() -> None:
    """Make ``nala`` known to ``AutoConfig`` and ``AutoModelForCausalLM``. A second call changes nothing."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from nala_platform.models.language import NaLaConfig, NaLaForCausalLM

    AutoConfig.register(NaLaConfig.model_type, NaLaConfig, exist_ok=True)
    AutoModelForCausalLM.register(NaLaConfig, NaLaForCausalLM, exist_ok=True)
