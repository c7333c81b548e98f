"""Weights from files: the authors', timm's and this platform's own."""

import argparse
import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from nala_platform.errors import UserError
from nala_platform.models.checkpoint import checkpoint_filter_fn, load_backbone, read_weights
from nala_platform.models.registration import register_timm
from nala_platform.models.segmenter import Segmenter
from nala_platform.models.vision import classifier, nalaformer_nano

register_timm()
GOLDEN = Path(__file__).parents[1] / "golden"


def filled(model, seed=7):
    """The model's weights, all random: what a file can hold that no new model has by chance."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(value.shape, generator=generator) if value.is_floating_point() else value + 3
        for name, value in model.state_dict().items()
    }


def released(weights):
    """The same as the authors save it: with their rotary constants."""
    return {**weights, **{f"layers.{index}.RoPE.angle": torch.rand(8) for index in range(4)}}


@pytest.fixture
def weights():
    return filled(nalaformer_nano(num_classes=10))


def same(model, weights, but=()):
    own = model.state_dict()
    assert set(own) == set(weights)
    return [name for name in own if name not in but and not torch.equal(own[name], weights[name])] == []


@pytest.mark.parametrize("wrapper", ["model", "model_ema", "state_dict", None])
def test_timm_reads_the_authors_checkpoints(wrapper, weights, tmp_path):
    path = tmp_path / "released.pth"
    saved = released(weights)
    if wrapper is not None:
        saved = {wrapper: saved, "epoch": 3, "args": argparse.Namespace(model="nala"), "optimizer": {"state": {}}}
    torch.save(saved, path)
    assert same(timm.create_model("nalaformer_nano", num_classes=10, checkpoint_path=path), weights)


def test_averaged_weights_come_first(weights, tmp_path):
    torch.save(
        {"model": released(filled(nalaformer_nano(num_classes=10), 1)), "model_ema": released(weights)},
        tmp_path / "x.pt",
    )
    assert same(timm.create_model("nalaformer_nano", num_classes=10, checkpoint_path=tmp_path / "x.pt"), weights)


def test_size_t_from_the_released_list_of_keys(tmp_path):
    shapes = json.loads((GOLDEN / "official_state_dict_keys_t.json").read_text())["t"]
    generator = torch.Generator().manual_seed(0)
    saved = {
        name: torch.randn(shape, generator=generator) if shape else torch.tensor(5) for name, shape in shapes.items()
    }
    torch.save({"model": saved}, tmp_path / "t.pth")
    model = timm.create_model("nalaformer_t", checkpoint_path=tmp_path / "t.pth")
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())


def test_timm_reads_them_with_another_number_of_classes(weights, tmp_path, capsys):
    torch.save({"model": released(weights)}, tmp_path / "x.pth")
    model = timm.create_model("nalaformer_nano", num_classes=4, checkpoint_path=tmp_path / "x.pth")
    total = len([name for name in model.state_dict() if "num_batches" not in name])
    assert f"{total - 2}/{total} tensors" in capsys.readouterr().out
    assert model.head.weight.shape[0] == 4
    own = model.state_dict()
    assert all(torch.equal(own[name], weights[name]) for name in own if not name.startswith("head."))
    headless = timm.create_model("nalaformer_nano", num_classes=0, checkpoint_path=tmp_path / "x.pth")
    assert torch.equal(headless.proj.weight, weights["proj.weight"])


def test_timm_reads_them_for_features(weights, tmp_path):
    torch.save({"model": released(weights)}, tmp_path / "x.pth")
    for indices in ((0, 1, 2, 3), (0, 2)):
        model = timm.create_model(
            "nalaformer_nano", features_only=True, out_indices=indices, checkpoint_path=tmp_path / "x.pth"
        )
        own = model.state_dict()
        assert own
        assert all(torch.equal(value, weights[name.removeprefix("model.")]) for name, value in own.items())


def test_pretrained_weights_through_timms_overlay(weights, tmp_path):
    torch.save({"model": released(weights)}, tmp_path / "x.pth")
    overlay = {"file": str(tmp_path / "x.pth"), "num_classes": 10}
    same_classes = timm.create_model("nalaformer_nano", pretrained=True, num_classes=10, pretrained_cfg_overlay=overlay)
    assert same(same_classes, weights)
    grey = timm.create_model(
        "nalaformer_nano", pretrained=True, num_classes=4, in_chans=1, pretrained_cfg_overlay=overlay
    )
    torch.testing.assert_close(
        grey.patch_embed.proj[0].weight, weights["patch_embed.proj.0.weight"].sum(1, keepdim=True)
    )
    assert torch.equal(grey.proj.weight, weights["proj.weight"])


def test_a_wrong_state_dict_still_stops(weights):
    model = nalaformer_nano(num_classes=10)
    renamed = released({name.replace("cpe1", "cpe3"): value for name, value in weights.items()})
    with pytest.raises(RuntimeError, match="cpe1"):
        model.load_state_dict(renamed)
    with pytest.raises(RuntimeError, match="size mismatch for head"):
        nalaformer_nano(num_classes=4).load_state_dict(weights)
    features = nalaformer_nano(features_only=True)
    with pytest.raises(RuntimeError, match="cpe"):
        features.load_state_dict(renamed)


def test_own_state_dicts_go_round(weights):
    for model in (nalaformer_nano(num_classes=10), nalaformer_nano(features_only=True), Segmenter()):
        saved = filled(model)
        model.load_state_dict(saved)
        assert same(model, saved)
    inside = nn.ModuleDict({"network": nalaformer_nano(num_classes=10)})
    inside.load_state_dict({f"network.{name}": value for name, value in released(weights).items()})
    assert same(inside["network"], weights)


def test_filter_unwraps(weights):
    model = nalaformer_nano(num_classes=10)
    for wrapped in ({"model": released(weights)}, {"model_ema": released(weights), "model": {}}, weights):
        assert checkpoint_filter_fn(wrapped, model).keys() == weights.keys()


@pytest.mark.parametrize("prefix", ["", "network.", "_orig_mod.", "network._orig_mod.", "module."])
@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_classifier_reads_every_kind_of_file(prefix, kind, weights, tmp_path, capsys):
    named = {prefix + name: value for name, value in weights.items()}
    path = tmp_path / f"x.{kind}"
    if kind == "safetensors":
        save_file(named, path)
    else:
        torch.save({"state_dict": named, "epoch": 1, "global_step": 5, "hyper_parameters": {"lr": 0.1}}, path)
    model = classifier(checkpoint_path=str(path))
    assert same(model, weights)
    total = len([name for name in weights if "num_batches" not in name])
    assert f"{total}/{total} tensors matched\n" in capsys.readouterr().out


def test_classifier_with_another_number_of_classes(weights, tmp_path, capsys):
    torch.save({"model": released(weights)}, tmp_path / "x.pth")
    model = classifier(num_classes=4, checkpoint_path=str(tmp_path / "x.pth"))
    report = capsys.readouterr().out
    total = len([name for name in weights if "num_batches" not in name])
    assert f"{total - 2}/{total} tensors" in report
    assert "head.weight (4, 256, 1, 1), in the file (10, 256, 1, 1)" in report
    own = model.state_dict()
    assert all(torch.equal(own[name], weights[name]) for name in own if not name.startswith("head."))
    assert model.num_classes == 4


def test_segmenter_takes_a_classifier_and_the_other_way_round(weights, tmp_path, capsys):
    torch.save({"model": released(weights)}, tmp_path / "x.pth")
    segmenter = Segmenter(checkpoint_path=str(tmp_path / "x.pth"))
    own = segmenter.backbone.state_dict()
    assert all(torch.equal(value, weights[name.removeprefix("model.")]) for name, value in own.items())
    assert "left out: proj.weight" in capsys.readouterr().out

    saved = {f"network.{name}": value for name, value in filled(Segmenter()).items()}
    torch.save({"state_dict": saved}, tmp_path / "run.ckpt")
    model = classifier(checkpoint_path=str(tmp_path / "run.ckpt"))
    name = "layers.2.blocks.1.attn.qkvg.weight"
    assert torch.equal(model.state_dict()[name], saved[f"network.backbone.model.{name}"])
    again = Segmenter(checkpoint_path=str(tmp_path / "run.ckpt"))
    assert torch.equal(again.backbone.state_dict()[f"model.{name}"], saved[f"network.backbone.model.{name}"])


def test_other_backbones_too(tmp_path):
    saved = filled(timm.create_model("test_convnext", num_classes=3))
    torch.save(saved, tmp_path / "x.pth")
    features = timm.create_model("test_convnext", features_only=True)  # with stages_0. for stages.0.
    report = load_backbone(features, tmp_path / "x.pth")
    assert report.matched == report.total > 20
    assert not report.missing
    assert all(name.startswith("head") for name in report.unexpected)
    assert torch.equal(
        features.state_dict()["stages_1.blocks.0.conv_dw.weight"], saved["stages.1.blocks.0.conv_dw.weight"]
    )


def test_report_names_what_is_new_and_what_is_left_out(weights, tmp_path):
    del weights["layers.3.blocks.0.gamma_1"]
    weights["extra.weight"] = torch.zeros(2)
    torch.save(weights, tmp_path / "x.pth")
    report = load_backbone(nalaformer_nano(num_classes=10), tmp_path / "x.pth")
    assert report.missing == ("layers.3.blocks.0.gamma_1",)
    assert report.unexpected == ("extra.weight",)
    assert report.matched == report.total - 1


def test_files_that_cannot_be_used(weights, tmp_path):
    path = tmp_path / "weights.pth"
    torch.save({"model": weights}, path)
    cut = tmp_path / "cut.pth"
    cut.write_bytes(path.read_bytes()[:5000])
    save_file(weights, tmp_path / "whole.safetensors")
    cut_safe = tmp_path / "cut.safetensors"
    cut_safe.write_bytes((tmp_path / "whole.safetensors").read_bytes()[:5000])
    empty = tmp_path / "empty.pth"
    empty.write_bytes(b"")
    text = tmp_path / "text.pth"
    text.write_text("not a checkpoint")
    for broken in (cut, cut_safe, empty, text):
        with pytest.raises(UserError, match=rf"{broken.name} cannot be read as a checkpoint") as caught:
            classifier(checkpoint_path=str(broken))
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"weigths\.pth is not a file; did you mean weights\.pth"):
        classifier(checkpoint_path=str(tmp_path / "weigths.pth"))
    with pytest.raises(UserError, match="is not a file"):
        classifier(checkpoint_path=str(tmp_path))
    torch.save([torch.zeros(3)], tmp_path / "list.pth")
    with pytest.raises(UserError, match=r"list\.pth"):
        read_weights(tmp_path / "list.pth")


def test_nothing_that_fits_is_an_error(weights, tmp_path):
    torch.save({f"other.{name}": value for name, value in weights.items()}, tmp_path / "x.pth")
    with pytest.raises(UserError, match=r"x\.pth does not fit the model: none of its \d+ tensors"):
        classifier(checkpoint_path=str(tmp_path / "x.pth"))
    torch.save(timm.create_model("test_resnet", num_classes=3).state_dict(), tmp_path / "resnet.pth")
    with pytest.raises(UserError, match=r"resnet\.pth does not fit"):
        Segmenter(checkpoint_path=str(tmp_path / "resnet.pth"))
    torch.save({"note": "no tensors"}, tmp_path / "none.pth")
    with pytest.raises(UserError, match=r"none\.pth"):
        classifier(checkpoint_path=str(tmp_path / "none.pth"))


SETS = ("plain", "averaged")


@pytest.mark.parametrize(
    ("entries", "taken"),
    [
        ({"model": "plain", "ema_model": "averaged"}, "ema_model"),
        ({"params": "plain", "params_ema": "averaged"}, "params_ema"),
        ({"state_dict": "plain", "ema": "averaged"}, "ema"),
        ({"current_model_state": "plain", "state_dict": "averaged"}, "state_dict"),  # of this platform
        ({"teacher": "plain", "model": "averaged"}, "model"),
        ({"schema": "plain", "state_dict_ema": "averaged"}, "state_dict_ema"),
    ],
)
def test_of_several_sets_of_weights_the_averaged_one_is_taken_and_named(entries, taken, tmp_path, caplog):
    values = {name: torch.full((2, 2), float(place)) for place, name in enumerate(SETS)}
    content: dict = {key: {"weight": values[name]} for key, name in entries.items()}
    noise = {"optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []}, "epoch": 3}
    torch.save({**noise, **content, "averaging_state": {"n_averaged": torch.tensor(3)}}, tmp_path / "x.pth")
    assert torch.equal(read_weights(tmp_path / "x.pth")["weight"], values["averaged"])
    (record,) = caplog.records
    other = next(key for key in entries if key != taken)
    assert record.levelname == "WARNING"
    assert record.getMessage() == f"{tmp_path / 'x.pth'} holds several sets of weights: {taken} was taken, not {other}"


def test_one_set_of_weights_is_taken_without_a_word(tmp_path, caplog):
    one = {"weight": torch.ones(2, 2)}
    for content in (one, {"model": one}, {"network": one, "epoch": 1}, {"ema": {"decay": 0.9, "module": one}}):
        torch.save(content, tmp_path / "x.pth")
        assert torch.equal(read_weights(tmp_path / "x.pth")["weight"], one["weight"])
    assert not caplog.records
