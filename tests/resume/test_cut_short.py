"""An epoch that a limit cuts short is not done, before a resume and after it."""

import csv
import json
from pathlib import Path

from runs import assert_same, words

from nala_platform.runs.checkpoint_file import read_note

CUT = ("--trainer.max_steps", "7")  # 5 an epoch


def test_a_run_that_steps_end_within_an_epoch_is_scored_alike_again(zygote, tmp_path: Path):
    for run in ("straight", "again"):
        zygote.run(tmp_path, *words("cls", run), *CUT)
    (tmp_path / "again" / "summary.json").unlink()  # as if it was killed while it was scored
    zygote.run(tmp_path, *words("cls", "again"), *CUT)
    assert_same(tmp_path / "straight", tmp_path / "again")
    with (tmp_path / "again" / "metrics.csv").open() as file:
        epochs = [int(row["epoch"]) for row in csv.DictReader(file)]
    assert set(epochs[:6]) == {0, 1} and epochs[-1] == 1
    assert read_note(tmp_path / "again" / "checkpoints" / "last.ckpt")["batch"] == 2
    found = [json.loads((tmp_path / run / "summary.json").read_text()) for run in ("straight", "again")]
    assert [(summary["epochs"], summary["steps"]) for summary in found] == [(1, 7)] * 2
