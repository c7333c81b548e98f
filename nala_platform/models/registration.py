"""Our names in timm's and Hugging Face's registries."""

import sys

from timm.models import is_model, model_entrypoint, register_model

from nala_platform.models.variants import ENTRIES


def register_timm() -> None:
    """Make every size known to ``timm.create_model`` and ``timm.list_models``. A second call changes nothing."""
    for entry in ENTRIES:
        if not (is_model(entry.__name__) and model_entrypoint(entry.__name__) is entry):
            register_model(entry)


def register_hf_config() -> None:
    """Make ``nala`` known to ``AutoConfig``. A second call changes nothing."""
    from transformers.models.auto.configuration_auto import AutoConfig

    from nala_platform.models.language_config import NaLaConfig

    AutoConfig.register(NaLaConfig.model_type, NaLaConfig, exist_ok=True)


def register_hf_model() -> None:
    """Make ``nala`` known to the entry points for models, once its module is there. A second call changes nothing."""
    from transformers.models.auto import modeling_auto

    ours = sys.modules.get("nala_platform.models.language")
    if ours is not None and not hasattr(ours, "NaLaForCausalLM"):
        return  # it is being imported, which brought Hugging Face's classes in; the call at its end does the work
    from nala_platform.models import language
    from nala_platform.models.remote_code import CLASSES

    for entry, name in CLASSES.items():
        if entry != "AutoConfig":
            getattr(modeling_auto, entry).register(language.NaLaConfig, getattr(language, name), exist_ok=True)
