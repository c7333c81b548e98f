"""What timm's users expect of a model, item by item, on the nano size."""

import pytest
import timm
import torch
from timm.models import group_parameters, is_model, list_models
from timm.optim import create_optimizer_v2

from nala_platform.errors import UserError
from nala_platform.models.registration import register_timm
from nala_platform.models.variants import ENTRIES, VARIANTS

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
    with pytest.raises(TypeError, match="attentoin"):
        nano(attentoin="nala")
    with pytest.raises(RuntimeError, match="No pretrained weights exist for nalaformer_nano"):
        nano(pretrained=True)


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
