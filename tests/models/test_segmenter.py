"""The segmenter: sizes, decoders, backbones, options."""

import pytest
import torch
import torch.nn.functional as F
from jsonargparse import ArgumentParser
from torch import nn

from nala_platform.attention import ATTENTION
from nala_platform.errors import UserError
from nala_platform.models.segmenter import DECODERS, Segmenter


@pytest.mark.parametrize("decoder", list(DECODERS))
@pytest.mark.parametrize(("height", "width"), [(64, 64), (30, 50), (33, 33), (224, 352), (1, 1), (5, 200)])
def test_logits_have_the_size_of_the_image(decoder, height, width):
    torch.manual_seed(0)
    model = Segmenter(num_classes=5, decoder=decoder)
    logits = model(torch.randn(2, 3, height, width))
    assert logits.shape == (2, 5, height, width)
    assert model.num_classes == 5
    F.cross_entropy(logits, torch.randint(5, (2, height, width))).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("decoder", list(DECODERS))
@pytest.mark.parametrize(
    "backbone", ["convnext_atto", "resnet10t", "test_efficientnet", "nalaformer_nano", "swin_s3_tiny_224", "tresnet_m"]
)
def test_any_pyramid_of_timm(decoder, backbone):
    options = {"timm_options": {"img_size": 64}} if backbone.startswith("swin") else {}
    model = Segmenter(backbone, num_classes=4, decoder=decoder, in_chans=2, decoder_width=64, **options).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 2, 50, 64)).shape == (1, 4, 50, 64)


def test_a_larger_image_only_adds_what_the_padding_repeats():
    torch.manual_seed(0)
    model, image = Segmenter().eval(), torch.randn(2, 3, 30, 50)
    repeated = torch.cat((image, image[..., -1:].expand(-1, -1, -1, 14)), -1)
    repeated = torch.cat((repeated, repeated[..., -1:, :].expand(-1, -1, 2, -1)), -2)
    with torch.no_grad():
        torch.testing.assert_close(model(image), model(repeated)[..., :30, :50])


def test_the_decoder_grows_with_the_backbone():
    def width(backbone):
        with torch.device("meta"):
            return Segmenter(backbone).decoder.p5.out_channels

    assert [width(f"nalaformer_{size}") for size in ("nano", "xt", "t", "l")] == [64, 192, 256, 256]
    model = Segmenter()
    decoder = sum(p.numel() for p in [*model.decoder.parameters(), *model.head.parameters()])
    assert decoder < sum(p.numel() for p in model.backbone.parameters()) / 3


def test_a_small_segmenter_learns_to_tell_the_halves_apart():
    """The halves differ in brightness and meet at a place that moves; who mixes up places cannot draw the edge."""
    torch.manual_seed(0)
    model = Segmenter(num_classes=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scores = []
    for _ in range(40):
        edge = torch.randint(16, 48, (8, 1, 1))
        target = (torch.arange(64)[None, None, :] >= edge).expand(8, 64, 64).long()
        image = torch.randn(8, 3, 64, 64) * 0.3 + target[:, None]
        logits = model(image)
        optimizer.zero_grad()
        F.cross_entropy(logits, target).backward()
        optimizer.step()
        scores.append((logits.argmax(1) == target).float().mean().item())
    assert sum(scores[-5:]) / 5 > 0.95


@pytest.mark.parametrize("attention", list(ATTENTION))
def test_attention_reaches_the_backbone(attention):
    model = Segmenter(attention=attention, drop_path_rate=0.2)
    stages = model.backbone.model.layers
    assert [stage.blocks[0].attn.attention for stage in stages] == [ATTENTION[attention]] * 4
    assert stages[3].blocks[0].drop_path.drop_prob == pytest.approx(0.2)


def test_nala_options_reach_the_backbone():
    model = Segmenter(alpha_range=(0.5, 2.0), alpha_gate="sigmoid", direction="cosine", learn_alpha=True)
    mixer = model.backbone.model.layers[0].blocks[0].attn
    assert (mixer.alpha_range, mixer.alpha_gate, mixer.direction) == ((0.5, 2.0), "sigmoid", "cosine")
    assert mixer.alpha is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "unet"}, "decoder='unet' is unknown; did you mean 'upernet'. Known: fpn, upernet"),
        ({"num_classes": 0}, "num_classes must be at least 1"),
        ({"backbone": "vit_tiny_patch16_224"}, "strides 16.*needs 4, 8, 16, 32"),
        ({"backbone": "nalaformr_t"}, "did you mean nalaformer_t"),
        ({"backbone": "convnext_atto", "attention": "softmax"}, "convnext_atto has no option attention"),
        ({"backbone": "convnext_atto", "learn_alpha": False, "direction": "split"}, "no option direction, learn_alpha"),
        ({"attention": "sofmax"}, "did you mean 'softmax'"),
        ({"pretrained": True}, "timm has no weights of nalaformer_nano"),
        ({"pretrained": True, "checkpoint_path": "x"}, "give only one"),
        ({"backbone": "convnext_atto", "timm_options": {"window": 7}}, "convnext_atto does not take an option.*window"),
        ({"timm_options": {"window": 7}}, "nalaformer_nano does not take an option.*window"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(UserError, match=message):
        Segmenter(**options)


class Task:
    """Has a network, as the tasks of the platform do."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network


@pytest.mark.parametrize("path", ["nala_platform.models.segmenter.Segmenter", "nala_platform.models.vision.classifier"])
def test_the_command_line_sees_every_option(path):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Task, "model")
    arguments = [f"--model.network={path}", "--model.network.attention=nala", "--model.network.alpha_range=[5e-1,2]"]
    arguments += ["--model.network.learn_alpha=true", "--model.network.drop_path_rate=0.1"]
    config = parser.parse_args(arguments)
    complete = config.model.network.init_args
    for option in ("stage_attention", "alpha_gate", "direction", "pretrained", "checkpoint_path", "num_classes"):
        assert option in complete
    network = parser.instantiate(config).model.network
    learned = [name for name, _ in network.named_parameters() if ".alpha." in name]
    assert len(learned) == 2 * 5


@pytest.mark.parametrize("decoder", ["fpn", "upernet"])
@pytest.mark.parametrize("size", [(1, 1), (7, 3), (32, 32), (33, 64)])
def test_pictures_of_a_few_pixels_train_and_predict(decoder: str, size: tuple[int, int]):
    network = Segmenter("nalaformer_nano", num_classes=3, decoder=decoder)
    image = torch.randn(2, 3, *size)
    network.train()(image).sum().backward()
    logits = network.eval()(image[:1])
    assert logits.shape == (1, 3, *size)
    assert torch.isfinite(logits).all()
