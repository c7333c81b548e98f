"""R15: whichever process of a group ends, and however, all end within a minute, with one message and the right code."""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest
from runs import wait_for, words

from nala_platform.runs.checkpoint_file import read_note

TWO = ("--trainer.devices", "2", "--trainer.strategy", "ddp")
FAILING = """
from lightning.pytorch import Callback
from nala_platform.errors import UserError

class Fails(Callback):
    def __init__(self, ranks: list[int], kind: str = "UserError"):
        self.ranks, self.kind = ranks, kind

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_rank in self.ranks and trainer.global_step == 3:
            raise {"UserError": UserError, "KeyError": KeyError}[self.kind]("picture 17 is damaged")
"""


def processes(folder: Path) -> dict[int, int | None]:
    """Who works in a folder: process id to rank, None for loader workers; a zombie works nowhere."""
    found: dict[int, int | None] = {}
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdigit() and os.readlink(place / "cwd") == str(folder):
                rank = re.search(rb"LOCAL_RANK=(\d)", (place / "environ").read_bytes())
                found[int(place.name)] = int(rank[1]) if rank else None
    return found


def child(folder: Path, first: int) -> int:
    """The process of rank 1: started by the first one, not forked by it or by itself, as loader workers are."""
    for pid, rank in processes(folder).items():
        parent = int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1])
        if rank == 1 and parent == first:
            return pid
    raise AssertionError("no process of rank 1")


def ended(zygote, folder: Path, first: int) -> tuple[int, str]:
    """Exit code and output, once no process is left, which must be within a minute."""
    end = time.monotonic() + 60
    while (left := processes(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == {}, (folder / "output.txt").read_text()
    return zygote.wait(first), (folder / "output.txt").read_text()


@pytest.mark.parametrize(
    ("task", "rank", "number", "code"),
    [
        pytest.param("sr", 0, signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.slow),
        ("sr", 1, signal.SIGKILL, 128 + signal.SIGKILL),
        pytest.param("lm", 1, signal.SIGKILL, 128 + signal.SIGKILL, marks=pytest.mark.campaign),
        pytest.param("lm", 0, signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.campaign),
    ],
)
def test_a_process_that_is_killed_ends_all(task: str, rank: int, number: int, code: int, zygote, tmp_path: Path):
    first = zygote.start(tmp_path, *words(task, "run"), *TWO)
    wait_for(tmp_path / "run", 2, 120)
    os.kill(first if rank == 0 else child(tmp_path, first), number)
    found, text = ended(zygote, tmp_path, first)
    assert found == code
    assert text.count("nala: error") == rank and "Traceback" not in text
    assert rank == 0 or "process 1 of 2 was ended by SIGKILL, so all end" in text


def test_a_process_that_stands_still_is_not_waited_for(zygote, tmp_path: Path):
    """As on a GPU, where a process that waits for another's numbers hears of nothing."""
    first = zygote.start(tmp_path, *words("cls", "run"), *TWO)
    while 1 not in processes(tmp_path).values():
        time.sleep(0.01)
    os.kill(child(tmp_path, first), signal.SIGKILL)  # it still imports; the first one waits for it to turn up
    code, text = ended(zygote, tmp_path, first)
    assert code == 128 + signal.SIGKILL and text.count("nala: error: process 1 of 2") == 1


@pytest.mark.parametrize(
    ("ranks", "kind", "code", "line"),
    [
        ("[1]", "UserError", 2, "nala: error: picture 17 is damaged"),
        pytest.param("[0,1]", "UserError", 2, "nala: error: picture 17 is damaged", marks=pytest.mark.campaign),
        pytest.param("[0]", "UserError", 2, "nala: error: picture 17 is damaged", marks=pytest.mark.campaign),
        pytest.param("[1]", "KeyError", 1, "KeyError: 'picture 17 is damaged'", marks=pytest.mark.campaign),
    ],
)
def test_an_error_is_said_once(ranks: str, kind: str, code: int, line: str, zygote, tmp_path: Path):
    (tmp_path / "mine.py").write_text(FAILING)
    options = (f"--trainer.callbacks.ranks={ranks}", f"--trainer.callbacks.kind={kind}")
    first = zygote.start(tmp_path, *words("cls", "run"), *TWO, "--trainer.callbacks+=mine.Fails", *options)
    found, text = ended(zygote, tmp_path, first)
    assert found == code
    # torch names the process before each line of a traceback, which also shows the line that raised
    assert text.count(line) == 1 and text.splitlines().count(line) + text.splitlines().count(f"[rank1]: {line}") == 1
    assert text.count("Traceback") == (kind == "KeyError")


@pytest.mark.parametrize(
    ("task", "whom", "number"),
    [
        pytest.param("sr", "all", signal.SIGTERM, marks=pytest.mark.campaign),
        ("cls", "rank 0", signal.SIGTERM),
        pytest.param("cls", "rank 1", signal.SIGTERM, marks=pytest.mark.campaign),
        pytest.param("cls", "rank 0", signal.SIGINT, marks=pytest.mark.campaign),
        pytest.param("sr", "all", signal.SIGINT, marks=pytest.mark.campaign),
    ],
)
def test_a_signal_to_any_saves_once_and_ends_all(task: str, whom: str, number: int, zygote, tmp_path: Path):
    rare = [*words(task, "run"), "--checkpoint.every_n_steps", "1000"]  # so what is there was saved by the signal
    first = zygote.start(tmp_path, *rare, *TWO)
    wait_for(tmp_path / "run", 5, 120)
    if whom == "all":
        os.killpg(first, number)
    else:
        os.kill(first if whom == "rank 0" else child(tmp_path, first), number)
    code, text = ended(zygote, tmp_path, first)
    assert code == 128 + number and "Traceback" not in text
    found = re.findall(r"nala: stopped at step (\d+); go on with: nala fit --resume run", text)
    assert len(found) == 1
    assert read_note(tmp_path / "run" / "checkpoints" / "last.ckpt")["step"] == int(found[0]) >= 5
