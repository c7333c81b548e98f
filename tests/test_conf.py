"""Every shipped configuration parses and builds what it names."""

import struct
from pathlib import Path

import pytest
import torch
import yaml
from jsonargparse import Namespace

from nala_platform import argv
from nala_platform.errors import UserError
from nala_platform.experiment import Experiment, run
from nala_platform.runs.lock import RunLock

TASKS = [task.name for task in argv.tasks()]
BYTES = ["--data.tokenizer", "bytes", "--model.network.vocab_size", "257", "--model.network.size", "nano"]
NANO = ["--model.network.backbone", "nalaformer_nano", "--model.network.decoder_width", "64"]
OVERLAYS = {
    "smoke": (TASKS, []),
    "image_folder": (["cls"], ["--model.network.num_classes", "2"]),
    "imagenet": (["cls"], ["--model.network.num_classes", "2"]),
    **{name: (["cls"], []) for name in ("cifar10", "cifar100", "mnist")},
    "mask_folder": (["seg"], ["--data.labels.num_classes", "2", "--model.network.num_classes", "2"]),
    **{name: (["seg"], NANO) for name in ("ade20k", "cityscapes", "voc2012", "pets")},
    "pair_folder": (["sr"], ["--data.patch.size", "4"]),
    **{name: (["sr"], ["--data.patch.size", "4", "--model.network.size", "nano"]) for name in ("div2k", "df2k")},
    "text": (["lm"], []),
    "wikitext": (["lm"], ["--data.vocab_size", "300", "--model.network.vocab_size", "300"]),
    **{name: (["lm"], BYTES) for name in ("fineweb", "slimpajama")},
    "token_bins": (["lm"], ["--model.network.size", "nano"]),
    "fsdp": ([], []),  # on GPUs alone
    "slurm": (["cls"], []),
}


class Built(Experiment):
    """Builds everything and runs nothing."""

    def _make_folder(self, settings: Namespace) -> Path:
        return Path("never-written")

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing."""


def cases() -> list[tuple[str, ...]]:
    return [(task,) for task in TASKS] + [(task, name) for name, (tasks, _) in OVERLAYS.items() for task in tasks]


def test_no_file_is_left_out():
    named = {"base", *TASKS, *OVERLAYS}
    assert {path.stem for path in argv.CONF.glob("*.yaml")} == named


@pytest.mark.parametrize("case", cases(), ids="+".join)
def test_it_builds(case: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    task, *overlays = case
    words = ["fit", "--task", task]
    for overlay in overlays:
        words += ["--config", overlay, *OVERLAYS[overlay][1]]
        if overlay == "text":
            (tmp_path / "my.txt").write_text("".join(f"line {index}\n" for index in range(5000)))
            words += [f"--data.root={tmp_path / 'my.txt'}", f"--data.source.cache_dir={tmp_path}"]
        if overlay in ("wikitext", "fineweb", "slimpajama", "token_bins"):
            words += [f"--data.root={language_tree(tmp_path / 'tree', overlay)}"]
            words += [] if overlay == "token_bins" else [f"--data.source.cache_dir={tmp_path}"]
        if overlay in ("cifar10", "cifar100", "mnist"):
            words += [f"--data.root={array_tree(tmp_path / 'tree', overlay)}"]
        if "folder" in overlay or overlay == "imagenet":
            root = folder_tree(tmp_path, overlay)
            pairs = [f"--data.folders.{split}_hr={root / 'images' / split}" for split in ("train", "val")]
            words += pairs if overlay == "pair_folder" else [f"--data.root={root}"]
        if overlay in ("ade20k", "cityscapes", "voc2012", "pets"):
            words += [f"--data.root={mask_tree(tmp_path, overlay)}"]
        if overlay in ("div2k", "df2k"):
            words += [f"--data.root={pair_tree(tmp_path)}"]
        if overlay == "slurm":
            for name in ("JOB_ID", "PROCID", "LOCALID", "NODEID"):
                monkeypatch.setenv(f"SLURM_{name}", "0")
    experiment = Built(argv.expand(words), RunLock())
    settings = yaml.safe_load((argv.CONF / f"{task}.yaml").read_text())
    assert type(experiment.model).__name__ == settings["model"]["class_path"].split(".")[-1]
    assert max(experiment.trainer.max_epochs, experiment.trainer.max_steps) >= 1
    assert experiment.model.network is not None


@pytest.mark.parametrize("overlay", ["wikitext", "fineweb", "slimpajama", "token_bins"])
def test_a_recipe_whose_warmup_counts_steps_has_a_smoke_test(overlay: str, tmp_path: Path):
    words = ["fit", "--task", "lm", "--config", overlay, "--config", "smoke", *OVERLAYS[overlay][1]]
    words += [f"--data.root={language_tree(tmp_path / 'tree', overlay)}"]
    words += [] if overlay == "token_bins" else [f"--data.source.cache_dir={tmp_path}"]
    model = Built(argv.expand(words), RunLock()).model
    schedule = model.make_schedule(torch.optim.SGD(model.network.parameters(), lr=1.0), 6)
    assert schedule.warmup_steps == 1


def test_what_runs_on_gpus_alone_says_so(tmp_path: Path):
    words = ["--trainer.accelerator", "cpu", "--trainer.devices", "2", "--folder", str(tmp_path / "run")]
    with pytest.raises(UserError, match="FSDP runs on GPUs alone"):
        run(argv.expand(["fit", "--task", "cls", "--config", "fsdp", *words]))


def pair_tree(root: Path) -> Path:
    """A picture a part of DIV2K, one of Flickr2K."""
    from PIL import Image

    for large, small in (
        ("DIV2K_train_HR/0001.png", "DIV2K_train_LR_bicubic/X4/0001x4.png"),
        ("DIV2K_valid_HR/0801.png", "DIV2K_valid_LR_bicubic/X4/0801x4.png"),
        ("Flickr2K_HR/000001.png", "Flickr2K_LR_bicubic/X4/000001x4.png"),
    ):
        for name, edge in ((large, 32), (small, 8)):
            (root / name).parent.mkdir(parents=True)
            Image.new("RGB", (edge, edge)).save(root / name)
    return root


def mask_tree(root: Path, overlay: str) -> Path:
    """An image and its mask for each split, where the published data sets have them."""
    from PIL import Image

    pairs = {
        "ade20k": [(f"images/{s}/a.jpg", f"annotations/{s}/a.png") for s in ("training", "validation")],
        "cityscapes": [
            (f"leftImg8bit/{s}/c/a_leftImg8bit.png", f"gtFine/{s}/c/a_gtFine_labelIds.png") for s in ("train", "val")
        ],
        "voc2012": [(f"JPEGImages/{s}.jpg", f"SegmentationClass/{s}.png") for s in ("train", "val")],
        "pets": [
            (f"images/{s}{i}.jpg", f"annotations/trimaps/{s}{i}.png") for s in ("trainval", "test") for i in range(10)
        ],
    }
    for name in (name for pair in pairs[overlay] for name in pair):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB" if "jpg" in name or "leftImg" in name else "L", (16, 16), 1).save(root / name)
    folder = root / {"voc2012": "ImageSets/Segmentation", "pets": "annotations"}.get(overlay, "")
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val") if overlay == "voc2012" else ("trainval", "test"):
        names = [split] if overlay == "voc2012" else [f"{split}{i} 1 1 1" for i in range(10)]
        (folder / f"{split}.txt").write_text("\n".join(names))
    return root


def folder_tree(root: Path, overlay: str) -> Path:
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 2, (16, 16, 3), dtype=np.uint8)
    for split in ("train", "val"):
        for place in (
            ("a", "b") if overlay in ("image_folder", "imagenet") else (f"images/{split}", f"annotations/{split}")
        ):
            folder = root / split / place if overlay in ("image_folder", "imagenet") else root / place
            folder.mkdir(parents=True)
            Image.fromarray(pixels[..., 0] if "annotations" in place else pixels).save(folder / "x.png")
    return root


def array_tree(root: Path, overlay: str) -> Path:
    """CIFAR's binary version or IDX files: two pictures of each class."""
    root.mkdir()
    classes = 100 if overlay == "cifar100" else 10
    for name in ("batches.meta.txt", "fine_label_names.txt"):
        (root / name).write_text("".join(f"name{label}\n" for label in range(classes)))
    labels = bytes(range(classes)) * 2
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "train", "test"):
        heads = [bytes([0, label]) if classes == 100 else bytes([label]) for label in labels]
        (root / f"{name}.bin").write_bytes(b"".join(head + bytes(3072) for head in heads))
    for part in ("train", "t10k"):
        (root / f"{part}-labels-idx1-ubyte").write_bytes(
            bytes.fromhex("00000801") + struct.pack(">I", 20) + labels[:20]
        )
        head = bytes.fromhex("00000803") + struct.pack(">III", 20, 28, 28)
        (root / f"{part}-images-idx3-ubyte").write_bytes(head + bytes(20 * 28 * 28))
    return root


def language_tree(root: Path, overlay: str) -> Path:
    root.mkdir()
    if overlay == "fineweb":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"text": ["a b", "c"]}), root / "000_00000.parquet")
    for part, split in (("train", "train"), ("valid", "validation"), ("test", "test")):
        if overlay == "wikitext":
            (root / f"wiki.{part}.raw").write_text(" \n = Title = \n \n Words here . \n" * 9)
        if overlay == "slimpajama":
            (root / split / "chunk1").mkdir(parents=True)
            (root / split / "chunk1" / "example_0.jsonl").write_text('{"text": "a"}\n')
        if overlay == "token_bins" and part != "test":
            (root / f"{part[:5].removesuffix('id')}.bin").write_bytes(bytes(2000))
    return root
