"""The ADE20K recipe as a person types it, on a tiny tree: trained, tested, predicted by real processes."""

import json

import numpy as np
import pytest
from PIL import Image

TINY = ["--model.network.backbone=nalaformer_nano", "--model.network.decoder_width=64", "--data.augment.crop=64"]
TINY += ["--data.augment.short_side=40", "--model.inference.short_side=40", "--model.inference.crop=32"]
TINY += ["--data.batch_size=2", "--data.num_workers=0", "--config=smoke", "--trainer.accelerator=cpu"]


@pytest.fixture(scope="module")
def nala(zygote):
    """``nala(folder, *words, code=0)``: the command, and what it printed."""
    return zygote.call


@pytest.fixture(scope="module")
def run(nala, tmp_path_factory):
    """Sky of stored 3 over road of stored 7, with unlabelled rows."""
    folder = tmp_path_factory.mktemp("ade")
    for split, count in (("training", 6), ("validation", 3)):
        for i in range(count):
            mask = np.uint8([[0]] * 4 + [[3]] * (20 + i) + [[7]] * 20) * np.ones((1, 50 + 3 * i), np.uint8)
            colours = np.array([(0, 0, 0), (90, 150, 220), (60, 50, 50)])[np.searchsorted([0, 3, 7], mask)]
            image = colours + np.random.default_rng(i).normal(0, 8, colours.shape)
            for kind, array, suffix in (("images", image.clip(0, 255), "jpg"), ("annotations", mask, "png")):
                path = folder / "ADEChallengeData2016" / kind / split / f"{i}.{suffix}"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(array.astype(np.uint8)).save(path)
    words = ["fit", "--task", "seg", "--config", "ade20k", "--data.root", str(folder), *TINY, "--folder=run"]
    nala(folder, *words, "--model.optimizer.lr=1e-2", "--trainer.max_epochs=8", "--trainer.limit_test_batches=1.0")
    return folder / "run"


def test_the_recipe_trains_and_its_protocol_says_how_it_was_scored(run):
    summary = json.loads((run / "summary.json").read_text())
    protocol = summary["protocol"]
    assert protocol["layout"] == "ade20k" and protocol["images"] == {"train": 6, "val": 3}
    assert protocol["labels"] == "0 -> 255, 1..150 -> 0..149, 255 stays, others refused"
    assert protocol["inference"].startswith("windows of 32x32 every 21x21, logits of overlaps averaged; shorter side")
    absent = protocol["classes without a true pixel"]["test"]
    assert len(absent) == 148 and not {"sky", "road"} & set(absent)
    assert summary["steps"] == 24 and summary["metrics"]["test/pixel_accuracy"] > 0.5
    assert (run / "predictions.png").stat().st_size > 5000


def test_predictions_have_the_size_of_their_pictures_and_the_palette_of_the_classes(nala, run):
    nala(run.parent, "predict", "run", "--trainer.accelerator=cpu")
    [folder] = (run / "predict").iterdir()
    for i in range(3):
        mask = Image.open(folder / "validation" / f"{i}.png")
        overlay = Image.open(folder / "validation" / f"{i}_overlay.png")
        assert mask.mode == "P" and mask.size == overlay.size == (50 + 3 * i, 44 + i)
        assert np.isin(np.asarray(mask), (2, 6)).mean() > 0.4


def test_validated_again_it_has_the_same_scores(nala, run):
    found = []
    for _ in range(2):
        done = nala(run.parent, "validate", "run", "--trainer.accelerator=cpu", "--trainer.limit_val_batches=1.0")
        found.append([line for line in done.stdout.splitlines() if "this run" in line])
    assert found[0] == found[1] and found[0]
