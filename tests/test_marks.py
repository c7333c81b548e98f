"""The marks that the defaults must reach on the embedded data, run as a person runs them."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

# metric, mark, and whether more of it is better (1) or less (-1); 33.86 dB is the bicubic enlargement and 0.8 dB
MARKS = {
    "cls": ("test/top1", 0.97, 1),
    "seg": ("test/miou", 0.72, 1),
    "sr": ("test/psnr_y", 33.86, 1),
    "lm": ("test/perplexity", 60, -1),
}


# sr and lm train for five minutes each, which CI has no time for: with `-m campaign`, before anything that moves them.
LONG = ("sr", "lm")
TASKS = [pytest.param(task, marks=pytest.mark.campaign if task in LONG else pytest.mark.slow) for task in MARKS]


@pytest.mark.parametrize("task", TASKS)
def test_the_default_run_reaches_its_mark(tmp_path: Path, task: str):
    command = [str(Path(sys.executable).with_name("nala")), "fit", "--task", task]
    start = time.monotonic()
    # two of them at once on two cores have a thread each; more would wait for each other at every operation
    threads = {"OMP_NUM_THREADS": "1"} if "PYTEST_XDIST_WORKER" in os.environ else {}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | threads)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / re.findall(r"run folder: (\S+)", done.stdout)[-1]
    metric, mark, sign = MARKS[task]
    summary = json.loads((folder / "summary.json").read_text())
    print(f"{task}: {metric} {summary['metrics'][metric]:.4f} in {time.monotonic() - start:.0f} s")
    found, name = sign * summary["metrics"][metric], metric.split("/")[1]
    assert found >= sign * mark
    assert found > max(sign * values[name] for values in summary["baselines"].values() if name in values)
