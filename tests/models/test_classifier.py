"""The door to classifiers of any kind."""

import pytest
import torch

from nala_platform.attention import ATTENTION
from nala_platform.errors import UserError
from nala_platform.models.vision import NaLaFormer, classifier


def test_default():
    model = classifier()
    assert isinstance(model, NaLaFormer)
    assert model.num_classes == 10
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("backbone", ["convnext_atto", "test_vit", "resnet10t"])
def test_any_timm_model(backbone):
    model = classifier(backbone, num_classes=4, in_chans=1, drop_path_rate=0.1).eval()
    side = model.pretrained_cfg["input_size"][-1]
    assert model(torch.randn(1, 1, side, side)).shape == (1, 4)
    assert model.num_classes == 4


def test_every_mechanism_trains_with_the_same_recipe():
    image, target = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    for attention in ATTENTION:
        torch.manual_seed(0)
        model = classifier(num_classes=4, attention=attention)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        losses = []
        for _ in range(12):
            loss = torch.nn.functional.cross_entropy(model(image), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] / 2, attention


def test_options_reach_the_network():
    model = classifier(
        stage_attention=("softmax", "nala", "relu", "linear"),
        alpha_range=(0.5, 2.0),
        alpha_gate="sigmoid",
        direction="cosine",
        learn_alpha=True,
        drop_rate=0.2,
        timm_options={"global_pool": "max"},
    )
    assert [stage.blocks[0].attn.alpha is not None for stage in model.layers] == [False, True, False, False]
    assert model.layers[1].blocks[0].attn.alpha_gate == "sigmoid"
    assert model.head_drop.p == 0.2
    assert model.global_pool.pool_type == "max"


@pytest.mark.parametrize(
    "option", ["attention", "stage_attention", "alpha_range", "alpha_gate", "direction", "learn_alpha"]
)
def test_an_option_that_the_backbone_does_not_have_is_refused(option):
    value = {"alpha_range": (1.0, 2.0), "learn_alpha": True, "stage_attention": ("nala",) * 4}.get(option, "nala")
    with pytest.raises(UserError, match=f"resnet10t has no option {option}.*nalaformer_nano"):
        classifier("resnet10t", **{option: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": "convnext_ato"}, "convnext_ato' is not a timm model; did you mean convnext_atto"),
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"pretrained": True}, "timm has no weights of nalaformer_nano"),
        ({"checkpoint_path": "nowhere.pth"}, "nowhere.pth is not a file"),
        ({"in_chans": 0}, "in_chans is 0: it must be 1 or more"),
        ({"drop_path_rate": 1.5}, r"drop_path_rate is 1.5: it must be in \[0, 1\)"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(UserError, match=message):
        classifier(**options)


def test_a_misspelt_option_is_named():
    with pytest.raises(TypeError, match="alpha_rang"):
        classifier(alpha_rang=(1.0, 2.0))
