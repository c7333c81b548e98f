"""nala check-data: each planted defect is found, nothing else is, and the list that mends it does."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nala_platform.check.command import main
from nala_platform.errors import UserError


def noise(height, width, seed):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(array, path, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(array)).save(path, **options)
    return path


def check(*words, tmp_path, code):
    """Runs the command; what it wrote as JSON, and its list."""
    output, fixes = tmp_path / "found.json", tmp_path / "fixes.txt"
    arguments = [*map(str, words), "--workers", "0", "--output", str(output), "--fix-list", str(fixes)]
    if code:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == code
    else:
        main(arguments)
    return json.loads(output.read_text()), fixes


def kinds(found, root):
    return {(row["kind"], Path(row["path"]).relative_to(root).as_posix()) for row in found["problems"]}


@pytest.fixture
def classes(tmp_path):
    """Class folders with every kind of picture that is right: grey, CMYK, palette, clear, rotated, 16 bits."""
    root = tmp_path / "classes"
    for split, count in (("train", 8), ("val", 3)):
        for label, name in enumerate(("cat", "dog")):
            for i in range(count):
                save(noise(30 + i, 50, 1000 * (split == "val") + 100 * label + i), root / split / name / f"{i:02d}.png")
    folder, picture = root / "train" / "cat", noise(40, 60, 7)
    save(picture[..., 0], folder / "grey.png")
    Image.fromarray(picture).convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(picture).convert("P").save(folder / "palette.png")
    Image.fromarray(picture).convert("RGBA").save(folder / "clear.png")
    save(picture[..., 1].astype(np.uint16) * 257, folder / "deep.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    save(picture, folder / "rotated.jpg", exif=exif)
    return root


def words(task, overlay, root, *more):
    return ["--task", task, "--config", overlay, "--data.root", root, *more]


def test_sound_pictures_raise_no_alarm(classes, tmp_path):
    found, fixes = check(*words("cls", "image_folder", classes), tmp_path=tmp_path, code=0)
    assert found["problems"] == [] and found["leaks"] == [] and found["contradictions"] == []
    train = found["splits"]["train"]
    assert train["samples"] == 22 and train["bad"] == 0 and train["label range"] == [0, 1]
    assert train["images of each class"] == {"cat": 14, "dog": 8}
    # the heights are 30..37 twice, 40 of five and, rotated, 60; the widths 50 of 16, 60 of five, 40 of one
    extent = train["height x width"]
    assert (extent["min"], extent["median"], extent["max"]) == ([30, 40], [35, 50], [60, 60])
    assert extent["distinct"] == 8 + 2
    assert found["the same once more"] == {"test": "val"}
    assert [line for line in fixes.read_text().splitlines() if not line.startswith("#")] == []


def test_what_is_wrong_with_classes(classes, tmp_path):
    folder = classes / "train" / "dog"
    whole = save(noise(80, 80, 1), tmp_path / "whole.jpg").read_bytes()
    (folder / "truncated.jpg").write_bytes(whole[:2000])
    (folder / "zero.jpg").touch()
    (folder / "page.jpg").write_text("<html>404</html>")
    save(np.ones((9, 9), np.float32), folder / "float.tif")
    for split in ("train", "val"):
        (classes / split / "empty").mkdir()
    (classes / "val" / "dog" / "copy.png").write_bytes((classes / "train" / "dog" / "03.png").read_bytes())
    (classes / "train" / "dog" / "other.png").write_bytes((classes / "train" / "cat" / "02.png").read_bytes())
    found, fixes = check(*words("cls", "image_folder", classes), tmp_path=tmp_path, code=1)
    assert kinds(found, classes) == {
        ("unreadable", "train/dog/truncated.jpg"),
        ("empty", "train/dog/zero.jpg"),
        ("unreadable", "train/dog/page.jpg"),
        ("wrong mode", "train/dog/float.tif"),
        ("empty", "train/empty"),
        ("empty", "val/empty"),
    }
    assert found["counts"] == {"empty": 3, "unreadable": 2, "wrong mode": 1}
    assert [Path(name).name for name in found["leaks"][0]] == ["03.png", "copy.png"] and len(found["leaks"]) == 1
    assert {Path(name).name for name in found["contradictions"][0]} == {"02.png", "other.png"}
    assert found["splits"]["train"]["bad"] == 4
    mended = [*words("cls", "image_folder", classes), "--data.exclude", fixes.rename(tmp_path / "list.txt")]
    found, _ = check(*mended, tmp_path=tmp_path, code=0)
    assert found["problems"] == [] and found["splits"]["train"]["images of each class"] == {"cat": 14, "dog": 9}


def test_processes_find_the_same(classes, tmp_path, capsys):
    for i in range(40):  # more than one chunk
        save(noise(8, 8, 500 + i), classes / "train" / "dog" / f"more{i}.png")
    (classes / "train" / "dog" / "zero.jpg").touch()
    rows = []
    for workers in ("0", "2"):
        output = tmp_path / f"{workers}.csv"
        with pytest.raises(SystemExit):
            main([*map(str, words("cls", "image_folder", classes)), "--workers", workers, "--output", str(output)])
        rows.append(list(csv.reader(output.open())))
    assert rows[0] == rows[1] and [row[:3] for row in rows[0][1:]] == [
        ["empty", "train", str(classes / "train" / "dog" / "zero.jpg")]
    ]
    said = capsys.readouterr().out
    assert "69 samples in" in said and "2 processes" in said and "1 file is not fit to be used" in said


def test_a_mistake_of_the_user_is_no_finding(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        main(["--task", "cls", "--config", "image_folder", "--data.root", str(tmp_path / "none")])
    with pytest.raises(UserError, match=r"no key --data\.rot"):
        main(["--task", "cls", "--config", "image_folder", "--data.rot", "x"])
    with pytest.raises(UserError, match=r"\.csv"):
        main(["--task", "cls", "--output", str(tmp_path / "found.txt")])
    with pytest.raises(UserError, match="begins no run"):
        main(["--resume", "runs/x"])
