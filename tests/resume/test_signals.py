"""SIGTERM and SIGINT save and leave with the conventional code; the run goes on as if nothing was."""

import os
import re
import signal
from pathlib import Path

import pytest
from runs import assert_same, wait_for, words

from nala_platform.runs.checkpoint_file import read_note


@pytest.mark.parametrize(
    ("task", "number"),
    [("cls", signal.SIGTERM), ("sr", signal.SIGINT), pytest.param("sr", signal.SIGTERM, marks=pytest.mark.campaign)],
)
def test_a_signal_saves_and_leaves(task: str, number: int, zygote, straight, tmp_path: Path):
    """The signal goes to the whole group, loader workers too, as a terminal and a batch system send it."""
    reference = straight(task)
    rare = [*words(task, "run"), "--checkpoint.every_n_steps", "1000"]  # so what is there was saved by the signal
    pid = zygote.start(tmp_path, *rare)
    wait_for(tmp_path / "run", 5, 3 * reference.seconds)  # the end of the first epoch
    os.killpg(pid, number)
    assert zygote.wait(pid) == 128 + number
    text = (tmp_path / "output.txt").read_text()
    assert "Traceback" not in text
    step = int(re.search(r"nala: stopped at step (\d+); go on with: nala fit --resume run", text).group(1))
    assert read_note(tmp_path / "run" / "checkpoints" / "last.ckpt")["step"] == step >= 5
    zygote.run(tmp_path, "fit", "--resume", "run", "--checkpoint.every_n_steps", "1")
    assert_same(reference.folder, tmp_path / "run")
