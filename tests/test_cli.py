"""The command as a person runs it: real processes, in a folder of their own.

Most are forked from one that has imported all; `fresh` starts one as a shell does.
"""

import csv
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

NALA = str(Path(sys.executable).with_name("nala"))


def fresh(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([NALA, *words], cwd=folder, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="session")
def nala(zygote) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``nala(folder, *words, code=0)``: the command, and what it printed."""
    return zygote.call


@pytest.fixture(scope="session")
def mistake(nala) -> Callable[..., str]:
    """``mistake(folder, *words)``: the one line on stderr of a command that is wrong."""
    return functools.partial(refused, nala)


def refused(nala, folder: Path, *words: str) -> str:
    """The one line on stderr; nothing is left behind."""
    before = sorted(folder.rglob("*"))
    text = nala(folder, *words, code=2).stderr
    assert text.count("\n") == 1, text
    assert [path for path in sorted(folder.rglob("*")) if path not in before and path.suffix] == []
    return text


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="session")
def seg_run(folder: Path) -> Path:
    printed = fresh(folder, "fit", "--task", "seg", "--config", "smoke", "--name", "first").stdout
    for text in ("epoch 2/2", "val/miou", "this run", "majority class", "logistic regression"):
        assert text in printed
    path = Path(re.findall(r"run folder: (\S+)", printed)[-1])
    assert path.parent == Path("runs/seg") and path.name.endswith("-first")
    return folder / path


@pytest.fixture(scope="session")
def cls_run(nala, folder: Path) -> Path:
    nala(folder, "fit", "--task", "cls", "--config", "smoke", "--name", "second")
    return next((folder / "runs" / "cls").glob("*-second"))


# What makes a command start in seconds instead of tenths of one.
HEAVY = {"torch", "lightning", "torchmetrics", "torchvision", "timm", "transformers", "optuna", "numpy", "matplotlib"}


@pytest.mark.parametrize("words", [["--help"], [], ["tasks"], ["fti"]], ids=["help", "nothing", "tasks", "typo"])
def test_what_only_prints_imports_no_heavy_library(words: list[str]):
    """`nala --help` answers at once because torch is not imported; a time would say so only on an idle machine."""
    script = (
        "import sys\n"
        "from nala_platform.cli import main\n"
        f"sys.argv = {['nala', *words]!r}\n"
        "try:\n    main()\n"
        "except SystemExit as left:\n    assert left.code in (0, 2), left.code\n"
        f"print('heavy:', sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"
    assert "nala fit" in done.stdout or "did you mean 'fit'?" in done.stderr or words == ["tasks"]


def test_tasks_lists_data_network_and_metric(tmp_path: Path):
    printed = fresh(tmp_path, "tasks").stdout
    assert re.search(r"^seg +segmentation +BlueMarbleData +Segmenter\(nalaformer_nano, fpn\) +val/miou$", printed, re.M)


def test_a_run_folder_is_whole(seg_run: Path):
    names = {path.name for path in seg_run.iterdir()}
    assert {"config.yaml", "checkpoints", "metrics.csv", "curves.png", "predictions.png", "summary.json"} == names
    summary = json.loads((seg_run / "summary.json").read_text())
    assert {"test/miou", "test/iou/lake"} <= set(summary["metrics"])
    assert summary["checkpoint"] == "checkpoints/best.ckpt"
    assert summary["seed"] == 0 and summary["steps"] == 6 and summary["parameters"] > 500_000
    assert summary["command"].startswith("nala fit --task seg")
    assert summary["versions"]["torch"] == torch.__version__.split("+")[0]
    assert summary["protocol"]["images"] == {"train": 1401, "val": 63, "test": 105}
    with (seg_run / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    steps = [int(row["step"]) for row in table]
    assert steps == sorted(set(steps))
    assert sum(bool(row["val/miou"]) for row in table) == 2
    for name in ("curves.png", "predictions.png"):
        with Image.open(seg_run / name) as picture:
            assert picture.width > 500


def test_the_config_is_complete_and_runs_again(nala, seg_run: Path, folder: Path):
    config = yaml.safe_load((seg_run / "config.yaml").read_text())
    assert config["trainer"]["limit_train_batches"] == 3 and config["trainer"]["gradient_clip_val"] == 1.0
    assert config["data"]["init_args"]["stride"] == 32
    again = nala(folder, "fit", "--config", str(seg_run / "config.yaml"), "--name", "again")
    assert "epoch 2/2" in again.stdout
    first, second = (
        json.loads((path / "summary.json").read_text())["metrics"]
        for path in (seg_run, next((folder / "runs" / "seg").glob("*-again")))
    )
    assert first == second


def test_checkpoints_hold_plain_types(seg_run: Path):
    """R13."""
    for name in ("best.ckpt", "last.ckpt"):
        checkpoint = torch.load(seg_run / "checkpoints" / name, weights_only=True)
        assert checkpoint["global_step"] in (3, 6)
    assert checkpoint["nala"]["position"] == {"epoch": 2, "batch": 0, "validating": False}
    assert (checkpoint["epoch"], checkpoint["global_step"]) == (2, 6)


def test_a_checkpoint_of_another_size_is_one_line(nala, cls_run: Path, folder: Path):
    best = cls_run / "checkpoints" / "best.ckpt"
    other = ("--model.network.backbone", "nalaformer_xt")
    for words in (
        ("test", str(cls_run), *other),
        ("fit", "--task", "cls", "--config", "smoke", "--name", "other", *other, f"--ckpt_path={best}"),
    ):
        text = nala(folder, *words, code=2).stderr
        assert f"{best} does not fit this network: network." in text.splitlines()[-1]
        assert text.splitlines()[-1].startswith("nala: error: ") and "config.yaml of its run has them" in text
        assert re.search(r"network\.\S+ is \([\d, ]+\) there and \([\d, ]+\) here", text)


def metrics(folder: Path) -> dict[str, float]:
    return json.loads((folder / "summary.json").read_text())["metrics"]


@pytest.mark.slow
def test_a_run_is_scored_again_alike_at_any_batch_size_and_on_two_processes(nala, seg_run: Path, folder: Path):
    """G1, G6: 37 items a batch, or on two processes, make the same confusion matrix."""
    whole = ["--trainer.limit_test_batches", "1.0"]
    for extra in (["--data.batch_size", "37"], ["--trainer.devices", "2", "--trainer.strategy", "ddp"]):
        nala(folder, "test", str(seg_run), *whole, "--trainer.accelerator", "cpu", *extra)
    first, second = sorted((seg_run / "test").iterdir())
    scores = [{name: value for name, value in metrics(path).items() if "loss" not in name} for path in (first, second)]
    assert scores[0] == scores[1]


def test_weights_go_away_to_timm(cls_run: Path):
    import timm

    import nala_platform  # noqa: F401 - registers the models

    weights = cls_run / "checkpoints" / "model.safetensors"
    model = timm.create_model("nalaformer_nano", num_classes=10, checkpoint_path=str(weights))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_predict_writes_a_table_of_classes(nala, cls_run: Path, folder: Path):
    pictures = folder / "digits"
    pictures.mkdir()
    for size in ((8, 8), (33, 50)):
        Image.fromarray(np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)).save(
            pictures / f"{size[0]}.png"
        )
    nala(folder, "predict", str(cls_run), "--data.predict_path", str(pictures))
    with next(cls_run.glob("predict/*/predictions.csv")).open() as file:
        table = list(csv.DictReader(file))
    assert [Path(row["file"]).name for row in table] == ["33.png", "8.png"]
    assert all(row["class"] in "0123456789" and 0.1 <= float(row["probability"]) <= 1 for row in table)


def test_predict_writes_masks_at_the_size_of_the_pictures(nala, seg_run: Path, folder: Path):
    pictures = folder / "photos"
    (pictures / "deep").mkdir(parents=True)
    for name, (width, height) in {"a.png": (50, 30), "a.jpg": (20, 9), "deep/a.jpg": (33, 33)}.items():
        Image.fromarray(np.full((height, width, 3), 90, np.uint8)).save(pictures / name)
    nala(folder, "predict", str(seg_run), "--data.predict_path", str(pictures))
    out = next(seg_run.glob("predict/*"))
    for name, size in {"a": (20, 9), "a.png": (50, 30), "deep/a": (33, 33)}.items():
        with Image.open(out / f"{name}.png") as mask, Image.open(out / f"{name}_overlay.png") as overlay:
            assert mask.mode == "P" and mask.size == size == overlay.size
            assert set(np.unique(np.asarray(mask))) <= {0, 1, 2}


@pytest.mark.parametrize("kind", ["cls", "seg"])
def test_predict_goes_past_pictures_that_cannot_be_read(nala, cls_run: Path, seg_run: Path, folder: Path, kind: str):
    """They are named and counted, the rest is predicted, and the exit code is 7; with none left, nothing is written."""
    run, pictures = (cls_run if kind == "cls" else seg_run), folder / f"{kind}-some-bad"
    pictures.mkdir()
    for name in ("b", "d"):
        Image.fromarray(np.full((40, 40, 3), 90, np.uint8)).save(pictures / f"{name}.png")
    (pictures / "a.png").touch()
    (pictures / "c.jpg").write_text("<html>404</html>")
    before = set(run.glob("predict/*"))
    error = nala(folder, "predict", str(run), "--data.predict_path", str(pictures), code=7).stderr
    lines = [line for line in error.splitlines() if line.startswith("nala: ")]
    assert ["a.png" in lines[0], "c.jpg" in lines[1], len(lines)] == [True, True, 3]
    assert lines[2].startswith(
        "nala: error: 2 inputs cannot be read and were skipped; the predictions of the others are"
    )
    [out] = set(run.glob("predict/*")) - before
    if kind == "cls":
        assert [row["file"] for row in csv.DictReader((out / "predictions.csv").open())] == ["b.png", "d.png"]
    else:
        assert {path.name for path in out.glob("*.png")} == {"b.png", "b_overlay.png", "d.png", "d_overlay.png"}
    if kind == "seg":
        (pictures / "b.png").unlink()
        (pictures / "d.png").unlink()
        before = set(run.glob("predict/*"))
        error = nala(folder, "predict", str(run), "--data.predict_path", str(pictures), code=7).stderr
        assert "2 inputs cannot be read and were skipped; there are no others" in error
        assert set(run.glob("predict/*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "--task", "sge"], "no task 'sge'; did you mean 'seg'?"),
        (["fti", "--task", "seg"], "no command 'fti'; did you mean 'fit'?"),
        (["fit", "--task", "seg", "--trainer.max_epoch", "3"], "did you mean 'max_epochs'?"),
        (["test", "runs/seg/nothing"], "no run at runs/seg/nothing"),
        (["test", "--task", "seg", "--ckpt_path", "no.ckpt"], "no checkpoint at no.ckpt"),
        (["fit", "--task", "cls", "--model.network.num_classes", "7"], "add --model.network.num_classes 10"),
        (["fit", "--task", "cls", "--model.network.backbone", "convnext_ato"], "did you mean convnext_atto"),
        (["fit", "--task", "seg", "--model.network.backbone", "convnext_atto", "--model.network.attention", "nala"],
         "has no option attention"),
        (["fit", "--task", "cls", "--config", "image_folder", "--data.root", "nowhere"], "nowhere"),
        (["fit", "--task", "cls", "--model.schedule.warmup", "2.5"], "schedule.warmup = 2.5"),
        (["fit", "--task", "cls", "--ema.decay", "1.5"], "ema.decay must be in (0, 1)"),
        (["fit", "--task", "cls", "--trainer.barebones", "true"], "--trainer.barebones true cannot be used here"),
        (["fit", "--task", "cls", "--trainer.default_root_dir", "x"], "--runs_dir"),
        (["fit", "--task", "cls", "--trainer.max_epochs", "-1", "--trainer.max_time", "00:00:00:05"],
         "needs the run's length"),
        (["fit", "--task", "cls", "--config", "smoke", "--data.batch_size", "1"], "raise --data.batch_size"),
        (["fit", "--config", "smoke"], "add --task NAME"),
        (["fit", "--task", "cls", "--config", "smoke", "--trainer.val_check_interval", "50"],
         "trainer.val_check_interval is 50: "),
        (["fit", "--task", "cls", "--config", "smoke", "--model.optimizer.lr", "-1"], "model.optimizer.lr is -1.0: "),
        (["fit", "--task", "cls", "--model.network.drop_rate", "1.5"], "model.network.drop_rate is 1.5: "),
        (["fit", "--task", "cls", "--model.label_smoothing", "null"], "model.label_smoothing is null: "),
        (["fit", "--task", "cls", "--compile", "inducto"], "did you mean 'inductor'?"),
        (["fit", "--task", "cls", "--trainer.max_steps", "0"], "trainer.max_steps is 0, so nothing would be trained"),
        (["fit", "--task", "cls", "--trainer.logger", "WandbLogger"], "pip install"),
        (["fit", "--task", "cls", "--config", "smoke", "--trainer.callbacks+", "EarlyStopping",
          "--trainer.callbacks.monitor", "val/top2"],
         "EarlyStopping's monitor 'val/top2' is not logged; validation logs val/loss, val/top1, val/top5; did you"),
        (["fit", "--task", "cls", "--config", "smoke", "--trainer.callbacks+", "EarlyStopping",
          "--trainer.callbacks.monitor", "train/los_epoch"], "trainer.callbacks.monitor is 'train/los_epoch': "),
        (["fit", "--task", "cls", "--data.num_workers", "1000000"], "each is a process; give "),
        (["fit", "--task", "cls", "--seed", "3"], "no key --seed; did you mean 'seed_everything'?"),
        (["fit", "--task", "cls", "--checkpoint.monitor", "val/top2", "--config", "smoke"], "logs val/loss, val/top1"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_leaves_nothing(mistake, tmp_path: Path, words: list[str], message: str):
    assert message in mistake(tmp_path, *words)


@pytest.fixture
def masks(tmp_path: Path) -> Path:
    """A tiny tree of three classes."""
    root = tmp_path / "masks"
    generator = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for kind in ("images", "annotations"):
            (root / kind / split).mkdir(parents=True)
        for index in range(count):
            Image.fromarray(generator.integers(0, 255, (40, 48, 3), dtype=np.uint8)).save(
                root / "images" / split / f"{index}.jpg"
            )
            Image.fromarray(generator.integers(0, 3, (40, 48), dtype=np.uint8)).save(
                root / "annotations" / split / f"{index}.png"
            )
    return root


OWN = ["--config", "mask_folder", "--data.augment.crop", "32", "--data.batch_size", "2", "--data.labels.num_classes",
       "3", "--model.network.backbone", "nalaformer_nano", "--trainer.max_epochs", "1"]  # fmt: skip


def test_own_masks_train_with_loader_workers_and_the_run_is_scored_from_anywhere(nala, tmp_path: Path, masks: Path):
    printed = nala(tmp_path, "fit", "--task", "seg", *OWN, "--data.root", masks.name, "--seed_everything", "5").stdout
    assert "this run" in printed
    moved = tmp_path / "elsewhere"
    next((tmp_path / "runs" / "seg").iterdir()).rename(moved)
    (tmp_path / "other").mkdir()
    again = nala(tmp_path / "other", "test", "../elsewhere").stdout
    assert re.findall(r"this run.*", printed) == re.findall(r"this run.*", again)


def test_the_order_of_the_data_follows_the_run_s_seed(monkeypatch: pytest.MonkeyPatch):
    from nala_platform.data.images.digits import DigitsData

    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    assert (DigitsData().seed, DigitsData(seed=3).seed) == (5, 3)
    monkeypatch.delenv("PL_GLOBAL_SEED")
    assert DigitsData().seed == 0


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_label_out_of_range_names_its_file(mistake, tmp_path: Path, masks: Path, workers: str):
    """G4, also when a loader's worker meets it."""
    bad = masks / "annotations" / "train" / "3.png"
    mask = np.asarray(Image.open(bad)).copy()
    mask[0, 0] = 200
    Image.fromarray(mask).save(bad)
    text = mistake(tmp_path, "fit", "--task", "seg", *OWN, "--data.root", str(masks), "--data.num_workers", workers)
    assert "3.png" in text and "200" in text


def test_a_truncated_picture_names_its_file(tmp_path: Path, masks: Path):
    bad = masks / "images" / "train" / "1.jpg"
    bad.write_bytes(bad.read_bytes()[:400])
    text = refused(fresh, tmp_path, "fit", "--task", "seg", *OWN, "--data.root", str(masks))
    assert "1.jpg" in text


def test_a_loss_that_diverges_ends_with_code_3(nala, tmp_path: Path):
    done = nala(
        tmp_path, "fit", "--task", "cls", "--config", "smoke", "--model.optimizer", "torch.optim.SGD",
        "--model.optimizer.lr", "1e30", "--trainer.gradient_clip_val", "null", code=3,
    )  # fmt: skip
    assert "lower the learning rate" in done.stderr and done.stderr.count("nala: error") == 1


FEW = ("--trainer.max_epochs", "1", "--trainer.callbacks", "null", "--data.batch_size", "8")


def summary_of(nala, folder: Path, *words: str) -> tuple[dict, str]:
    """The summary of a run of few steps, and what it says on stderr."""
    done = nala(folder, "fit", "--task", "cls", "--config", "smoke", *FEW, *words)
    return json.loads(next((folder / "runs" / "cls").glob("*/summary.json")).read_text()), done.stderr


def test_a_run_without_a_test_has_a_summary_of_its_last_validation(nala, tmp_path: Path):
    summary, _ = summary_of(nala, tmp_path, "--trainer.limit_test_batches", "0")
    assert summary["note"] == "the test split was not scored: --trainer.limit_test_batches is 0"
    assert {"val/top1", "val/loss"} <= set(summary["metrics"]) and summary["checkpoint"] == "checkpoints/last.ckpt"
    assert (
        summary["best"]["score"] == summary["metrics"]["val/top1"] and summary["best"]["step"] == summary["steps"] == 3
    )


def test_a_best_checkpoint_that_no_validation_chose_is_said_to_be_the_last(nala, tmp_path: Path):
    summary, said = summary_of(nala, tmp_path, "--trainer.limit_val_batches", "0")
    note = "no validation chose best.ckpt, which is the last state: --trainer.limit_val_batches is 0"
    assert summary["best"] == {"monitor": "val/top1", "mode": "max", "score": None, "step": 3, "note": note}
    assert f"nala: note: {note}\n" in said and "test/top1" in summary["metrics"]


def test_a_run_without_validation_and_test_has_a_summary(nala, tmp_path: Path):
    nothing = ("--trainer.limit_val_batches", "0", "--trainer.limit_test_batches", "0")
    summary, _ = summary_of(nala, tmp_path, *nothing)
    assert summary["steps"] == 3 and summary["best"]["score"] is None and "train/loss_epoch" in summary["metrics"]
