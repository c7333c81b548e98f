"""Every shipped configuration parses and builds what it names."""

import struct
from pathlib import Path

import pytest
import yaml
from jsonargparse import Namespace

from nala_platform import argv
from nala_platform.errors import UserError
from nala_platform.experiment import Experiment, run
from nala_platform.runs.lock import RunLock

TASKS = [task.name for task in argv.tasks()]
OVERLAYS = {
    "smoke": (TASKS, []),
    "image_folder": (["cls"], ["--model.network.num_classes", "2"]),
    "imagenet": (["cls"], ["--model.network.num_classes", "2"]),
    **{name: (["cls"], []) for name in ("cifar10", "cifar100", "mnist")},
    "mask_folder": (["seg"], ["--data.labels.num_classes", "2", "--model.network.num_classes", "2"]),
    "pair_folder": (["sr"], ["--data.patch.size", "4"]),
    "text": (["lm"], []),
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
        if overlay in ("cifar10", "cifar100", "mnist"):
            words += [f"--data.root={array_tree(tmp_path / 'tree', overlay)}"]
        if "folder" in overlay or overlay == "imagenet":
            root = folder_tree(tmp_path, overlay)
            pairs = [f"--data.folders.{split}_hr={root / 'images' / split}" for split in ("train", "val")]
            words += pairs if overlay == "pair_folder" else [f"--data.root={root}"]
        if overlay == "slurm":
            for name in ("JOB_ID", "PROCID", "LOCALID", "NODEID"):
                monkeypatch.setenv(f"SLURM_{name}", "0")
    experiment = Built(argv.expand(words), RunLock())
    settings = yaml.safe_load((argv.CONF / f"{task}.yaml").read_text())
    assert type(experiment.model).__name__ == settings["model"]["class_path"].split(".")[-1]
    assert experiment.trainer.max_epochs >= 1
    assert experiment.model.network is not None


def test_what_runs_on_gpus_alone_says_so(tmp_path: Path):
    words = ["--trainer.accelerator", "cpu", "--trainer.devices", "2", "--folder", str(tmp_path / "run")]
    with pytest.raises(UserError, match="FSDP runs on GPUs alone"):
        run(argv.expand(["fit", "--task", "cls", "--config", "fsdp", *words]))


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
