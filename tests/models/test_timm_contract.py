"""What timm's users expect of a model, item by item, on the nano size."""

from functools import partial

import pytest
import segmentation_models_pytorch
import timm
import torch
from timm.models import group_parameters, is_model, list_models
from timm.optim import create_optimizer_v2

from nala_platform.errors import UserError
from nala_platform.models.registration import register_timm
from nala_platform.models.variants import ENTRIES, VARIANTS
from nala_platform.nn.rope import rotary_tables

register_timm()
CHANNELS = (16, 32, 64, 128)


def nano(**options):
    torch.manual_seed(0)
    return timm.create_model("nalaformer_nano", **options)


def images(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_names_are_known_to_timm_once():
    register_timm()
    assert set(list_models("nalaformer*")) == {f"nalaformer_{size}" for size in VARIANTS}
    assert len(list_models("nalaformer*")) == len(ENTRIES)
    assert is_model("nalaformer_t")
    assert list_models("nalaformer*", pretrained=True) == []


def test_registering_again_does_not_warn(recwarn):
    register_timm()
    assert not [w for w in recwarn if "registry" in str(w.message)]


def test_create_model_passes_timms_options():
    model = nano(num_classes=5, in_chans=1, drop_rate=0.3, drop_path_rate=0.5, global_pool="max")
    assert model(images(2, 1, 40, 40)).shape == (2, 5)
    assert model.head_drop.p == 0.3
    assert model.layers[3].blocks[0].drop_path.drop_prob == 0.5
    assert model.num_classes == 5
    assert model.global_pool.pool_type == "max"
    for key in ("input_size", "mean", "std", "interpolation", "crop_pct", "num_classes"):
        assert key in model.pretrained_cfg
    assert model.default_cfg is model.pretrained_cfg
    assert model.get_submodule(model.pretrained_cfg["first_conv"]).in_channels == 1
    assert model.get_submodule(model.pretrained_cfg["classifier"]) is model.get_classifier()
    assert timm.data.resolve_model_data_config(model)["input_size"][0] == 3


def test_unknown_options_are_refused():
    """The message names the model, the nearest option and all of them."""
    with pytest.raises(TypeError, match=r"nalaformer_nano got an unexpected .*'attentoin'; did you mean 'attention'"):
        nano(attentoin="nala")
    with pytest.raises(TypeError, match=r"nalaformer_nano .*'attn_drop_rate'.*Options: num_classes, in_chans, .*dtype"):
        nano(attn_drop_rate=0.1)
    with pytest.raises(RuntimeError, match="No pretrained weights exist for nalaformer_nano"):
        nano(pretrained=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_stride": 4}, "output_stride must be one of 8, 16, 32, got 4"),
        ({"act_layer": "foo"}, "act_layer='foo' is not a layer of timm's"),
        ({"norm_layer": "foo"}, "norm_layer='foo' is not a layer of timm's"),
        ({"norm_layer": "batchnorm2d"}, "norm_layer='batchnorm2d' normalises maps"),
        ({"norm_layer": "layernorm2d"}, "norm_layer='layernorm2d' normalises maps"),
        ({"norm_layer": torch.nn.BatchNorm1d}, "normalises maps"),
    ],
)
def test_wrong_values_of_timms_options(options, message):
    with pytest.raises(UserError, match=message):
        nano(**options)


def test_layers_and_dropout_in_timms_words():
    """Each option reaches every place of its kind and no other; the names of weights stay."""
    usual = nano()
    model = nano(act_layer="relu", norm_layer="rmsnorm", proj_drop_rate=0.2)
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    assert sum(kind == "ReLU" for kind in kinds.values()) == 3 + 5
    assert sum(kind == "GELU" for kind in kinds.values()) == 0
    assert kinds["act"] == "SiLU"
    assert sum(kind == "RmsNorm" for kind in kinds.values()) == 3 * 5
    assert sum(kind == "LayerNorm" for kind in kinds.values()) == 0
    rates = [module.p for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout)]
    assert sorted(rates) == [0.0] + 10 * [0.2]
    # an RMS norm has no bias
    biases = {name for name, module in usual.named_modules() if isinstance(module, torch.nn.LayerNorm)}
    assert set(usual.state_dict()) - set(model.state_dict()) == {f"{name}.bias" for name in biases}
    model(images(2, 3, 40, 40)).square().sum().backward()
    torch.manual_seed(5)
    assert not torch.equal(model(images(2, 3, 40, 40)), model(images(2, 3, 40, 40)))
    layer = nano(norm_layer=partial(torch.nn.LayerNorm, eps=0.1), act_layer=torch.nn.ReLU)
    assert layer.layers[0].blocks[0].norm1.norm.eps == layer.layers[3].blocks[0].attn.ln.eps == 0.1


class TestOutputStride:
    @pytest.mark.parametrize(("stride", "reductions"), [(32, [4, 8, 16, 32]), (16, [4, 8, 16, 16]), (8, [4, 8, 8, 8])])
    def test_features(self, stride, reductions):
        model = nano(features_only=True, output_stride=stride).eval()
        assert model.feature_info.reduction() == reductions
        features = model(images(2, 3, 70, 64))
        assert [f.shape[-2:] for f in features] == [(-(-70 // r), -(-64 // r)) for r in reductions]

    @pytest.mark.parametrize(("stride", "step"), [(16, 2), (8, 4)])
    @pytest.mark.parametrize("size", [(64, 96), (70, 41)])
    def test_the_same_weights_see_the_same_neighbours(self, stride, step, size):
        """Without attention, each token of the strided network is one of the dilated network."""
        strided, dilated = nano().eval(), nano(output_stride=stride).eval()
        for model in (strided, dilated):
            for block in (block for layer in model.layers for block in layer.blocks):
                torch.nn.init.zeros_(block.attn.out_proj.weight)
                block.attn.lepe.register_forward_hook(lambda module, inputs, out: lepe.append(out))
        dilated.load_state_dict(strided.state_dict(), strict=True)
        lepe = []
        expected = strided.forward_features(images(1, 3, *size))
        found = dilated.forward_features(images(1, 3, *size))
        torch.testing.assert_close(found[..., ::step, ::step], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(lepe[-1][..., ::step, ::step], lepe[4], rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("step", [2, 4])
    def test_rotary_distances_are_kept(self, step):
        coarse = rotary_tables(3, 5, 8, device=torch.device("cpu"))
        fine = rotary_tables(3 * step, 5 * step, 8, device=torch.device("cpu"), dilation=step)
        for one, other in zip(coarse, fine, strict=True):
            torch.testing.assert_close(other.view(3, step, 5, step, 8)[:, 0, :, 0], one.view(3, 5, 8))

    @pytest.mark.parametrize(
        ("decoder", "stride"), [("DeepLabV3", 8), ("DeepLabV3Plus", 16), ("PAN", 16), ("PAN", 32), ("Unet", None)]
    )
    def test_decoders_of_segmentation_models_pytorch(self, decoder, stride):
        options = {} if stride is None else {"encoder_output_stride": stride}
        make = getattr(segmentation_models_pytorch, decoder)
        model = make("tu-nalaformer_nano", encoder_weights=None, classes=2, **options).eval()
        with torch.no_grad():
            assert model(images(1, 3, 256, 256)).shape == (1, 2, 256, 256)


def test_features_only():
    model = nano(features_only=True).eval()
    assert model.feature_info.channels() == list(CHANNELS)
    assert model.feature_info.reduction() == [4, 8, 16, 32]
    whole = nano().eval()
    for height, width in ((64, 96), (30, 50), (33, 33)):
        image = images(2, 3, height, width)
        features = model(image)
        for index, feature in enumerate(features):
            stride = 4 * 2**index
            assert feature.shape == (2, CHANNELS[index], -(-height // stride), -(-width // stride))
        for one, other in zip(features, whole.forward_intermediates(image, intermediates_only=True), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("indices", [(1,), (0, 2), (1, 3), (-1,), (-4, -2)])
def test_features_only_keeps_what_it_needs(indices):
    model = nano(features_only=True, out_indices=indices)
    plain = [index % 4 for index in indices]
    assert model.feature_info.channels() == [CHANNELS[index] for index in plain]
    features = model(images(2, 3, 64, 64))
    assert [feature.shape[1] for feature in features] == [CHANNELS[index] for index in plain]
    sum(feature.square().sum() for feature in features).backward()
    # A parameter without a gradient would stop distributed training.
    assert all(p.grad is not None for p in model.parameters())


def test_features_by_hooks():
    model = nano(features_only=True, feature_cls="hook").eval()
    for one, other in zip(
        model(images(1, 3, 64, 64)), nano(features_only=True).eval()(images(1, 3, 64, 64)), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_hooked_features_load_their_own_weights():
    model = nano(features_only=True, feature_cls="hook")
    assert not model.load_state_dict(model.state_dict()).missing_keys


def test_forward_is_head_of_features():
    model, image = nano(num_classes=6).eval(), images(2, 3, 64, 64)
    features = model.forward_features(image)
    assert features.shape == (2, model.num_features, 2, 2)
    torch.testing.assert_close(model.forward_head(features), model(image))
    before = model.forward_head(features, pre_logits=True)
    assert before.shape == (2, model.head_hidden_size) == (2, 256)
    torch.testing.assert_close(model.get_classifier()(before[..., None, None]).flatten(1), model(image))
    model.reset_classifier(0)
    torch.testing.assert_close(model(image), before)


def test_forward_intermediates():
    model, image = nano().eval(), images(2, 3, 64, 64)
    last, every = model.forward_intermediates(image)
    torch.testing.assert_close(last, model.forward_features(image))
    torch.testing.assert_close(every[3], last)
    two = model.forward_intermediates(image, indices=2, intermediates_only=True)
    assert [feature.shape[1] for feature in two] == [64, 128]
    chosen = model.forward_intermediates(image, indices=[0, -2], intermediates_only=True, output_fmt="NHWC")
    torch.testing.assert_close(chosen[1], every[2].permute(0, 2, 3, 1))
    early, taken = model.forward_intermediates(image, indices=[0, 1], stop_early=True)
    torch.testing.assert_close(early, every[1])
    assert len(taken) == 2
    with pytest.raises(UserError, match="NLC"):
        model.forward_intermediates(image, output_fmt="NLC")


@pytest.mark.parametrize("pool", ["avg", "max", "avgmax", "catavgmax", "fast", ""])
def test_reset_classifier(pool):
    model = nano(num_classes=3).eval()
    model.reset_classifier(7, pool)
    logits = model(images(2, 3, 64, 64))
    assert model.num_classes == 7
    assert logits.shape == ((2, 7, 2, 2) if pool == "" else (2, 7))
    kept = model.global_pool
    model.reset_classifier(4)
    assert model.global_pool is kept
    assert not model.head.training
    assert model(images(1, 3, 32, 32)).shape[:2] == (1, 4)
    assert nano(num_classes=4, global_pool=pool).head.weight.shape == model.head.weight.shape


def test_without_classes_the_pooled_vector_comes_out():
    model = nano(num_classes=0).eval()
    assert isinstance(model.get_classifier(), torch.nn.Identity)
    assert model(images(2, 3, 64, 64)).shape == (2, model.head_hidden_size)


def test_group_matcher_orders_the_layers():
    model = nano()
    coarse = group_parameters(model, model.group_matcher(coarse=True), reverse=True)
    assert coarse["patch_embed.proj.0.weight"] == 0
    assert [coarse[f"layers.{i}.blocks.0.gamma_1"] for i in range(4)] == [1, 2, 3, 4]
    assert coarse["layers.0.downsample.norm.weight"] == 1
    assert coarse["head.weight"] == coarse["proj.weight"] == 5
    fine = group_parameters(model, model.group_matcher(), reverse=True)
    assert [fine[f"layers.{i}.blocks.{j}.cpe1.weight"] for i, j in ((0, 0), (1, 0), (2, 0), (2, 1), (3, 0))] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert fine["layers.2.downsample.reduction.weight"] == fine["layers.2.blocks.1.cpe1.weight"]
    assert fine["head.weight"] == 6
    assert set(fine) == {name for name, _ in model.named_parameters()}


def test_layer_decay_through_timms_optimizer():
    model = nano()
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5)
    scale = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    assert scale[id(model.head.weight)] == 1.0
    assert scale[id(model.layers[3].blocks[0].attn.qkvg.weight)] == 0.5
    assert scale[id(model.patch_embed.proj[0].weight)] == 0.5**6


def test_no_weight_decay_on_scales():
    model = nano(learn_alpha=True)
    listed = model.no_weight_decay()
    assert listed <= {name for name, _ in model.named_parameters()}
    assert len(listed) == 2 * 5 + 2 * 2
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1.0, weight_decay=0.1)
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] > 0 for p in group["params"]}
    assert id(model.layers[0].blocks[0].gamma_1) not in decayed
    assert id(model.layers[0].blocks[0].attn.qkvg.weight) in decayed


@pytest.mark.parametrize("features_only", [False, True])
def test_grad_checkpointing_changes_neither_values_nor_gradients(features_only):
    image, results = images(2, 3, 48, 48), []
    for enable in (False, True):
        model = nano(features_only=features_only, drop_path_rate=0.3)
        (model.model if features_only else model).set_grad_checkpointing(enable)
        torch.manual_seed(3)
        out = model(image)
        out = out[-1] if features_only else out
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad for p in model.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_weights_on_a_device_and_in_a_dtype():
    model = nano(device="cpu", dtype=torch.bfloat16, num_classes=3)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    model.reset_classifier(2)
    assert model.head.weight.dtype == torch.bfloat16
    assert nano(device="meta").head.weight.is_meta


def test_prune_intermediate_layers():
    model = nano()
    assert model.prune_intermediate_layers([0, 2]) == [0, 2]
    assert model.num_features == model.head_hidden_size == 64
    features = model.forward_features(images(1, 3, 64, 64))
    assert features.shape == (1, 64, 4, 4)
    torch.testing.assert_close(model(images(1, 3, 64, 64)), features)
    whole = nano(num_classes=3)
    assert whole.prune_intermediate_layers(1, prune_head=False) == [3]
    assert whole(images(2, 3, 64, 64)).shape == (2, 3)
