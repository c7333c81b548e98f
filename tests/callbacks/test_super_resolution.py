"""The pictures of a super-resolution run."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

from nala_platform.callbacks.report import _table
from nala_platform.callbacks.super_resolution import SuperResolutionPictures, SuperResolutionPNG, eight_bit


def test_predictions_are_written_under_their_names(tmp_path: Path, capsys):
    trainer = SimpleNamespace(default_root_dir=str(tmp_path), is_global_zero=True)
    image = torch.randint(0, 256, (1, 3, 9, 12), dtype=torch.uint8)
    callback = SuperResolutionPNG()
    for name in ("a.jpg", "deep/b.png", "a.png"):
        outputs = {"name": [name], "image": image}
        callback.on_predict_batch_end(trainer, None, outputs, {"image": torch.zeros(1, 3, 3, 4)}, 0)
    callback.on_predict_end(trainer, None)
    assert "3 enlarged images" in capsys.readouterr().out
    for path in (tmp_path / "a_x3.png", tmp_path / "deep" / "b_x3.png", tmp_path / "a.png_x3.png"):
        assert np.array_equal(np.asarray(Image.open(path)), image[0].permute(1, 2, 0).numpy())


def test_the_window_is_where_bicubic_is_worst(tmp_path: Path):
    trainer = SimpleNamespace(default_root_dir=str(tmp_path), is_global_zero=True)
    truth = torch.full((1, 3, 120, 160), 0.5)
    truth[..., 80:120, 120:160] = torch.rand(1, 3, 40, 40)
    small = torch.full((1, 3, 60, 80), 0.5)
    callback = SuperResolutionPictures(count=2, window=40)
    callback.on_test_batch_end(trainer, None, truth, {"name": ["x"], "image": small, "target": truth}, 0)
    [shown] = callback._shown
    assert np.array_equal(shown.truth, eight_bit(truth[0, :, 80:120, 120:160]))
    assert shown.psnr_ours == float("inf") and 10 < shown.psnr_bicubic < 40
    callback.on_test_end(trainer, None)
    with Image.open(tmp_path / "predictions.png") as picture:
        assert picture.width > 1000
    assert callback._shown == []


def test_of_several_test_sets_each_shows_its_first_pictures(tmp_path: Path):
    data = SimpleNamespace(test_sets=("set5", "b100"))
    trainer = SimpleNamespace(default_root_dir=str(tmp_path), is_global_zero=True, datamodule=data)
    truth, small = torch.rand(1, 3, 40, 40), torch.rand(1, 3, 20, 20)
    callback = SuperResolutionPictures(count=3, window=40)
    for part, name in ((0, "a"), (0, "b"), (0, "c"), (1, "d"), (1, "e"), (1, "f")):
        batch = {"name": [name], "image": small, "target": truth, "test_set": torch.tensor([part])}
        callback.on_test_batch_end(trainer, None, truth, batch, 0)
    assert [shown.name for shown in callback._shown] == ["a", "b", "d", "e"]


def test_the_table_has_a_row_a_test_set_and_method():
    metrics = {"test/psnr_y": 30.0, "test/set5/psnr_y": 30.0, "test/b100/psnr_y": 27.0}
    table = _table(metrics, {"bicubic": {"psnr_y": 28.0, "set5/psnr_y": 28.0}}, "test", ["psnr_y"], ("set5", "b100"))
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert rows == [
        ("set5: this run", "30.0000"),
        ("set5: bicubic", "28.0000"),
        ("b100: this run", "27.0000"),
        ("b100: bicubic", ""),
    ]
    table = _table(metrics, {}, "test", ["psnr_y"], ())
    assert [list(column.cells) for column in table.columns] == [["this run"], ["30.0000"]]
