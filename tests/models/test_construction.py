"""Building a network runs no attention and compiles nothing: that is for the first forward on a CPU."""

import pytest
import torch

from nala_platform.attention import ATTENTION
from nala_platform.attention.native import library
from nala_platform.models import language
from nala_platform.models.segmenter import Segmenter
from nala_platform.models.upscaler import Upscaler
from nala_platform.models.vision import classifier, nalaformer_nano

NETWORKS = {
    "classifier": lambda: classifier(learn_alpha=True),
    "all linear": lambda: nalaformer_nano(attention="nala", direction="cosine"),
    "features": lambda: nalaformer_nano(features_only=True, output_stride=16),
    "segmenter": Segmenter,
    "upscaler": Upscaler,
    "language": lambda: language.NaLaForCausalLM(language.NaLaConfig.from_size("nano", vocab_size=50)),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_constructor_runs_no_attention_and_no_compiler(monkeypatch, make, device):
    def refuse(*args, **kwargs):
        raise AssertionError("called in a constructor")

    for name in ATTENTION:
        monkeypatch.setitem(ATTENTION, name, refuse)
    for name in ("library", "_found", "_compiled", "told"):
        monkeypatch.setattr(library, name, refuse)
    with torch.device(device):
        network = make()
    assert {parameter.device.type for parameter in network.parameters()} == {device}
