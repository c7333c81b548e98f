"""A process ends with the one that started it."""

import signal
import subprocess
import sys

import pytest

CHILD = (
    "import os, time; from nala_platform.parent import end_with; end_with(os.getppid()); print('ready', flush=True); "
    "time.sleep(60); print('woke', flush=True)"
)
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone promises it")


def test_it_ends_when_the_first_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
        parent.send_signal(signal.SIGKILL)
        # the child holds the pipe too: it ends with the last of both, and a child that lived on would say so
        assert parent.stdout.read() == ""


def test_one_that_starts_too_late_ends_at_once():
    code = "from nala_platform.parent import end_with; end_with(1 << 30); print('on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
