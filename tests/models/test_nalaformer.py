"""NaLaFormer against the released network, the table of sizes, and odd inputs."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode

from nala_platform.attention import ATTENTION
from nala_platform.errors import UserError
from nala_platform.models.variants import ENTRIES, VARIANTS, Variant, build
from nala_platform.models.vision import nalaformer_nano

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = Variant((16, 32, 48, 64), (1, 1, 2, 1), (1, 2, 3, 4), (3.5, 3.5, 4.0, 4.0), 0.0, (1.0,) * 4, projection=96)


@pytest.fixture(scope="module")
def golden():
    return load_file(GOLDEN / "nalaformer_tiny_model.safetensors")


def released_weights(golden):
    return {name.removeprefix("state."): value for name, value in golden.items() if name.startswith("state.")}


def test_the_released_network_is_reproduced(golden):
    model = build(TINY, num_classes=10).eval()
    model.load_state_dict(released_weights(golden), strict=True)
    with torch.no_grad():
        torch.testing.assert_close(model(golden["input"]), golden["logits"], rtol=0, atol=1e-5)
        last, stages = model.forward_intermediates(golden["input"])
    for index, stage in enumerate(stages):
        torch.testing.assert_close(stage, golden[f"stage{index}"], rtol=0, atol=1e-5)
    torch.testing.assert_close(last, golden["stage3"], rtol=0, atol=1e-5)


def test_key_names_and_shapes_are_the_released_ones():
    released = json.loads((GOLDEN / "official_state_dict_keys_t.json").read_text())["t"]
    constants = {name for name in released if name.endswith("RoPE.angle")}
    assert len(constants) == 4
    with torch.device("meta"):
        own = build(VARIANTS["t"]).state_dict()
    assert {name: list(value.shape) for name, value in own.items()} == {
        name: shape for name, shape in released.items() if name not in constants
    }


@pytest.mark.parametrize(
    ("size", "parameters", "gmacs"),
    [("xt", 6.14, 0.64), ("t", 15.91, 2.86), ("s", 25.65, 5.04), ("b", 52.00, 11.74), ("l", 95.43, 17.68)],
)
def test_sizes_match_the_table(size, parameters, gmacs):
    """Multiply-adds of convolutions, linear layers and attention's products (no norms, no elementwise work)."""
    with torch.device("meta"):
        model = build(VARIANTS[size]).eval()
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            model(torch.empty(1, 3, 224, 224))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(parameters, abs=0.005)
    assert counter.get_total_flops() / 2e9 == pytest.approx(gmacs, abs=0.0051)


def test_nano_has_about_half_a_million_parameters():
    assert sum(p.numel() for p in nalaformer_nano(num_classes=10).parameters()) == 503_930


def test_layer_scale_and_drop_path_follow_the_table():
    with torch.device("meta"):
        model = build(VARIANTS["b"])
    rates = [block.drop_path.drop_prob for stage in model.layers for block in stage.blocks]
    assert rates == pytest.approx([0.4 * i / 27 for i in range(28)])
    small = build(Variant((16, 32), (1, 1), (1, 2), (2.0, 2.0), 0.0, (1.0, 1e-6)), stage_attention=("nala", "nala"))
    assert [stage.blocks[0].gamma_2.unique().item() for stage in small.layers] == pytest.approx([1.0, 1e-6])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_every_size_takes_odd_inputs(entry):
    with torch.device("meta"):
        model = entry(num_classes=7).eval()
        for height, width in ((30, 50), (33, 33), (224, 352), (1, 1)):
            features = model.forward_features(torch.empty(2, 3, height, width))
            assert features.shape == (2, model.num_features, -(-height // 32), -(-width // 32))
            assert model.forward_head(features).shape == (2, 7)


@pytest.mark.parametrize("attention", list(ATTENTION))
@pytest.mark.parametrize(("height", "width"), [(30, 50), (33, 33), (224, 352), (1, 1), (1, 70)])
def test_odd_inputs_train(attention, height, width):
    torch.manual_seed(0)
    model = nalaformer_nano(num_classes=7, attention=attention)
    logits = model(torch.randn(2, 3, height, width))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_one_name_sets_all_stages_and_the_default_is_the_released_mixture():
    def mechanisms(**options):
        return [stage.blocks[0].attn.attention for stage in nalaformer_nano(**options).layers]

    nala, softmax = ATTENTION["nala"], ATTENTION["softmax"]
    assert mechanisms() == [nala, nala, softmax, softmax]
    for name in ATTENTION:
        assert mechanisms(attention=name) == [ATTENTION[name]] * 4
    mixed = ("relu", "linear", "nala", "softmax")
    assert mechanisms(stage_attention=list(mixed)) == [ATTENTION[name] for name in mixed]


def test_all_linear_layers_cost_linearly_in_the_pixels():
    def macs(attention, side):
        with torch.device("meta"):
            model = nalaformer_nano(attention=attention).eval()
            counter = FlopCounterMode(display=False)
            with torch.no_grad(), counter:
                model.forward_features(torch.empty(1, 3, side, side))
        return counter.get_total_flops()

    assert macs("nala", 512) / macs("nala", 256) == pytest.approx(4, rel=0.01)
    assert macs("softmax", 512) / macs("softmax", 256) > 6


def test_learned_exponents_are_per_head_parameters_of_nala_stages():
    model = nalaformer_nano(learn_alpha=True, alpha_range=(0.5, 2.0))
    learned = {name: p for name, p in model.named_parameters() if ".alpha." in name}
    assert {name: tuple(p.shape) for name, p in learned.items()} == {
        f"layers.{stage}.blocks.0.attn.alpha.{end}": (heads,)
        for stage, heads in ((0, 1), (1, 2))
        for end in ("low", "high")
    }
    low, high = model.layers[1].blocks[0].attn.alpha()
    torch.testing.assert_close(low, torch.full((2,), 0.5))
    torch.testing.assert_close(high, torch.full((2,), 2.0))
    optimizer = torch.optim.SGD(learned.values(), lr=100.0)
    for _ in range(3):
        model(torch.randn(2, 3, 32, 32)).square().sum().mul(1e3).backward()
        assert all(p.grad is not None and torch.any(p.grad != 0) for p in learned.values())
        optimizer.step()
        for stage in (0, 1):
            low, high = model.layers[stage].blocks[0].attn.alpha()
            assert torch.all((low >= 0.1) & (low < high) & (high <= 8.0))


@pytest.mark.parametrize("alpha_gate", ["tanh", "sigmoid"])
@pytest.mark.parametrize("direction", ["split", "cosine"])
@pytest.mark.parametrize("learn_alpha", [False, True])
def test_low_exponents_and_bf16_stay_finite(alpha_gate, direction, learn_alpha):
    torch.manual_seed(0)
    model = nalaformer_nano(
        attention="nala", alpha_range=(0.5, 2.0), alpha_gate=alpha_gate, direction=direction, learn_alpha=learn_alpha
    )
    image = torch.randn(2, 3, 40, 40)
    image[1] = 0  # a flat image: equal tokens, many zeros
    for narrow in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            logits = model(image)
        assert torch.isfinite(logits).all()
        logits.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_agree_with_float32(dtype):
    torch.manual_seed(0)
    model, image = nalaformer_nano(num_classes=5).eval(), torch.randn(2, 3, 48, 40)
    with torch.no_grad():
        wide = model.forward_features(image)
        narrow = model.to(dtype).forward_features(image.to(dtype))
    assert narrow.dtype == dtype
    assert (narrow.float() - wide).norm() / wide.norm() < 0.03


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "nala", "stage_attention": ("nala",) * 4}, "give only one"),
        ({"stage_attention": ("nala",) * 3}, "needs 4 names, got 3"),
        ({"stage_attention": ("nala", "nala", "nala", "softmxa")}, "did you mean 'softmax'"),
        ({"attention": "softmax", "learn_alpha": True}, "learn_alpha needs a stage with attention 'nala'"),
        ({"alpha_range": (2.0, 1.0)}, "alpha_range"),
        ({"learn_alpha": True, "alpha_range": (0.01, 1.0)}, "alpha_range"),
        ({"direction": "splt"}, "direction='splt'.*did you mean 'split'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        nalaformer_nano(**options)
