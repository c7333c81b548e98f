"""nala check-data: each planted defect is found, nothing else is, and the list that mends it does."""

import csv
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nala_platform.check.command import main
from nala_platform.check.findings import Findings
from nala_platform.check.show import show, write, write_fix_list
from nala_platform.data.problems import Excluded, Problem
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
    save(np.full((9, 9), 255, np.int32), folder / "integers.tif")
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
        ("wrong mode", "train/dog/integers.tif"),
        ("empty", "train/empty"),
        ("empty", "val/empty"),
    }
    assert found["counts"] == {"empty": 3, "unreadable": 2, "wrong mode": 2}
    assert [Path(name).name for name in found["leaks"][0]] == ["03.png", "copy.png"] and len(found["leaks"]) == 1
    assert {Path(name).name for name in found["contradictions"][0]} == {"02.png", "other.png"}
    assert found["splits"]["train"]["bad"] == 5
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
    with pytest.raises(UserError, match="no such folder"):
        main(["--task", "cls", "--fix-list", str(tmp_path / "none" / "list.txt")])
    with pytest.raises(UserError, match=r"\.png"):
        main(["--task", "cls", "--picture", str(tmp_path / "samples")])
    with pytest.raises(UserError, match="begins no run"):
        main(["--resume", "runs/x"])


def masks_tree(root):
    """Images with masks of 0, 1, 2 and 255: train 8, val 3."""
    for split, count in (("train", 8), ("val", 3)):
        for i in range(count):
            height, width = (30, 50) if i % 2 else (33, 33)
            label = np.random.default_rng(i).choice(np.array([0, 1, 2, 255], np.uint8), (height, width))
            save(noise(height, width, 50 * (split == "val") + i), root / "images" / split / f"{i:02d}.jpg", quality=95)
            save(label, root / "annotations" / split / f"{i:02d}.png")
    return root


def test_what_is_wrong_with_masks(tmp_path):
    root = masks_tree(tmp_path / "masks")
    mask, image = root / "annotations" / "train", root / "images" / "train"
    typed = words("seg", "mask_folder", root, "--data.labels.num_classes", "3", "--data.augment.crop", "32")
    found, _ = check(*typed, tmp_path=tmp_path, code=0)
    train = found["splits"]["train"]
    stored = [np.asarray(Image.open(path)) for path in sorted(mask.glob("*.png"))]
    assert train["pixels of each class"] == {
        name: sum(int((array == label).sum()) for array in stored)
        for name, label in (("0", 0), ("1", 1), ("2", 2), ("ignored", 255))
    }
    assert train["images of each class"] == {"0": 8, "1": 8, "2": 8, "ignored": 8}
    assert train["label range"] == [0, 255] and train["absent classes"] == []
    assert train["height x width"]["smaller than the crop"] == 0.5  # 30x50

    wrong = np.zeros((33, 33), np.uint8)
    wrong[4, 5] = 7
    save(wrong, mask / "00.png")
    save(noise(30, 50, 3), mask / "01.png")
    save(np.zeros((50, 30), np.uint8), mask / "03.png")
    (mask / "04.png").unlink()
    (image / "05.jpg").unlink()
    save(np.zeros((33, 33), np.uint8), mask / "06.jpg")
    (mask / "06.png").unlink()
    (image / "07.jpg").write_bytes((image / "07.jpg").read_bytes()[:900])
    found, fixes = check(*typed, tmp_path=tmp_path, code=1)
    assert kinds(found, root) == {
        ("wrong label", "annotations/train/00.png"),
        ("wrong mode", "annotations/train/01.png"),
        ("wrong size", "annotations/train/03.png"),
        ("unpaired", "images/train/04.jpg"),
        ("unpaired", "annotations/train/05.png"),
        ("wrong mode", "annotations/train/06.jpg"),
        ("unreadable", "images/train/07.jpg"),
    }
    assert "label 7" in next(row["text"] for row in found["problems"] if row["kind"] == "wrong label")
    found, _ = check(*typed, "--data.exclude", fixes.rename(tmp_path / "list.txt"), tmp_path=tmp_path, code=0)
    assert found["problems"] == [] and found["splits"]["train"]["samples"] == 1


def pairs_tree(root):
    """Pictures of 64x48 and 67x50 with small ones of a half: train 4, val 2."""
    for split, count in (("train", 4), ("val", 2)):
        for i in range(count):
            height, width = (64, 48) if i % 2 else (67, 50)
            large = noise(height, width, 50 * (split == "val") + i)
            save(large, root / f"{split}_hr" / f"{i:02d}.png")
            save(large[: height // 2, : width // 2], root / f"{split}_lr" / f"{i:02d}x2.png")
    return root


def test_what_is_wrong_with_pairs(tmp_path):
    root = pairs_tree(tmp_path / "pairs")
    typed = ["--task", "sr", "--config", "pair_folder", "--data.patch.size", "16"]
    for split in ("train", "val"):
        typed += [
            f"--data.folders.{split}_hr",
            root / f"{split}_hr",
            f"--data.folders.{split}_lr",
            root / f"{split}_lr",
        ]
    found, _ = check(*typed, tmp_path=tmp_path, code=0)
    assert found["splits"]["train"]["samples"] == 4  # not the squares of an epoch
    assert found["splits"]["train"]["height x width"]["max"] == [67, 50]
    (root / "train_lr" / "00x2.png").unlink()
    save(noise(31, 24, 0), root / "train_lr" / "01x2.png")
    (root / "train_hr" / "02.png").write_bytes((root / "train_hr" / "02.png").read_bytes()[:1000])
    found, fixes = check(*typed, tmp_path=tmp_path, code=1)
    assert {(kind, name) for kind, name in kinds(found, root)} == {
        ("unpaired", "train_hr/00.png"),
        ("wrong size", "train_lr/01x2.png"),
        ("unreadable", "train_hr/02.png"),
    }
    found, _ = check(*typed, "--data.exclude", fixes.rename(tmp_path / "list.txt"), tmp_path=tmp_path, code=0)
    assert found["splits"]["train"]["samples"] == 1


def test_what_is_wrong_with_text(tmp_path):
    root = tmp_path / "texts"
    root.mkdir()
    for part, count in (("train", 200), ("val", 40), ("test", 40)):
        rows = [json.dumps({"text": f"{part} {i}: a line of text\n" * 3}) for i in range(count)]
        (root / f"{part}.jsonl").write_text("\n".join([*rows, json.dumps({"text": ""})]) + "\n")
    typed = ["--task", "lm", "--config", "text", "--data.root", root, "--data.tokenizer", "bytes"]
    typed += ["--data.source.cache_dir", tmp_path / "cache", "--data.context", "64"]
    found, _ = check(*typed, tmp_path=tmp_path, code=0)
    counted = found["as the data counts"]
    assert counted["documents"] == {"train": 200, "val": 40, "test": 40} and set(counted["empty"].values()) == {1}
    # each byte is a token, and the end of a document is one
    size = sum(len(f"train {i}: a line of text\n" * 3) + 1 for i in range(200))
    assert found["splits"]["train"]["tokens"] == counted["tokens"]["train"] == size
    assert found["shared documents"] == []
    with (root / "val.jsonl").open("a") as file:
        file.write((root / "train.jsonl").read_text().splitlines()[7] + "\n")
    found, _ = check(*typed, tmp_path=tmp_path, code=0)
    assert found["shared documents"] == [{"split": "val", "other": "train", "count": 1, "documents": 41}]
    assert "(a leak): 1 of 41" in found["warnings"][0]
    with (root / "train.jsonl").open("a") as file:
        file.write('{"text": null}\n{"text": "half\n')
    found, fixes = check(*typed, tmp_path=tmp_path, code=1)
    assert [Path(row["path"]).name for row in found["problems"]] == ["train.jsonl"] * 2
    assert ["line 202" in found["problems"][0]["text"], "line 203" in found["problems"][1]["text"]] == [True, True]
    assert str(root / "train.jsonl") in fixes.read_text().splitlines()
    with (root / "val.jsonl").open("a") as file:
        file.write('{"text": "a\\u0000b"}\n')
    found, _ = check(*typed, tmp_path=tmp_path, code=1)
    [nul] = [row for row in found["problems"] if row["kind"] == "NUL"]
    assert Path(nul["path"]).name == "val.jsonl" and "line 43: text holds a NUL" in nul["text"]


@pytest.mark.parametrize("task", ["cls", "seg", "sr", "lm"])
def test_the_embedded_data_is_sound_and_can_be_seen(task, tmp_path):
    picture = tmp_path / "samples.png"
    found, _ = check("--task", task, "--picture", picture, tmp_path=tmp_path, code=0)
    assert {"train", "val", "test"} == found["splits"].keys() | found["the same once more"].keys()
    shown = Image.open(picture)
    assert shown.width > 500 and len(np.unique(np.asarray(shown.convert("L")))) > 30


def test_what_a_data_set_does_not_have_is_not_counted():
    protocol = {"test sets": {}, "images": {"train": 2, "val": 1}, "classes": 3}
    data: Any = SimpleNamespace(protocol=lambda: protocol)
    assert Findings(data).counted() == {"images": {"train": 2, "val": 1}}


def test_names_of_files_that_are_no_text_are_listed_and_can_be_left_out(tmp_path, capsys):
    """Bytes that are not UTF-8, and line breaks: one line each on the screen, themselves in the files."""
    odd, broken = tmp_path / os.fsdecode(b"caf\xe9.png"), tmp_path / "two\nlines.png"
    findings = Findings(None)
    for path in (odd, broken):
        path.touch()
        findings.note("train", [Problem("empty", path, "the file is empty")])
    show(findings)
    shown = capsys.readouterr().out
    assert "caf\\udce9.png: the file is empty" in shown and "two\\nlines.png: the file is empty" in shown
    for name in ("found.csv", "found.json"):
        write(findings, tmp_path / name)
    assert [row["path"] for row in json.loads((tmp_path / "found.json").read_text())["problems"]] == [
        *(str(odd), str(broken))
    ]
    with (tmp_path / "found.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        assert [row["path"] for row in csv.DictReader(file)] == [str(odd), str(broken)]
    write_fix_list(findings, tmp_path / "list.txt")
    excluded = Excluded(str(tmp_path / "list.txt"), tmp_path)
    assert odd in excluded and broken not in excluded
    assert b"# rename it to leave it out: " in (tmp_path / "list.txt").read_bytes()
