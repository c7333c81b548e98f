"""Real ``nala`` processes without the seconds that importing takes: a parent that has imported all forks them.

Run as a program it reads one JSON object a line: ``{"words": [...], "folder": "...", "output": "...", "error": "..."}``
starts ``nala words`` in that folder and answers its process id; ``{"wait": pid}`` answers its exit code, negative for a
signal. It imports and never computes, so no thread of torch's exists when it forks.
"""

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import yaml

Environment = dict[str, str]
LIMIT = 300.0  # seconds that a process may take


class Zygote:
    """Starts ``nala`` processes; use as a context."""

    def __enter__(self) -> "Zygote":
        threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "RAYON_NUM_THREADS": "1"}
        environment = {**os.environ, **threads, "HF_HUB_OFFLINE": "1"}  # which is read at the import
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait(30)

    def start(
        self, folder: Path, *words: str, output: str = "output.txt", environment: Environment | None = None
    ) -> int:
        """The process id of ``nala words``, which writes to ``folder/output.txt``."""
        place = str(folder / output)
        return self._start(folder, words, place, place, environment)

    def wait(self, pid: int) -> int:
        """Its exit code; minus the number of the signal that ended it."""
        return self._ask({"wait": pid})

    def run(self, folder: Path, *words: str) -> str:
        """What a command that ends well prints."""
        code = self.wait(self.start(folder, *words))
        text = (folder / "output.txt").read_text()
        assert code == 0, text
        return text

    def call(
        self, folder: Path, *words: str, code: int = 0, environment: Environment | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command that ends with ``code`` and without a traceback; what it prints is left nowhere in ``folder``."""
        with tempfile.TemporaryDirectory() as place:
            output, error = Path(place) / "output", Path(place) / "error"
            found = self.wait(self._start(folder, words, str(output), str(error), environment))
            done = subprocess.CompletedProcess(words, found, output.read_text(), error.read_text())
        assert found == code and "Traceback" not in done.stderr, done.stdout + done.stderr
        return done

    def _start(
        self, folder: Path, words: tuple[str, ...], output: str, error: str, environment: Environment | None
    ) -> int:
        request = {"words": words, "folder": str(folder), "output": output, "error": error}
        return self._ask({**request, "environment": environment or {}})

    def _ask(self, request: dict) -> int:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _serve() -> None:
    from nala_platform import argv, experiment  # noqa: F401

    for task in argv.tasks():
        _import_classes(yaml.safe_load((argv.CONF / f"{task.name}.yaml").read_text()))
    gc.freeze()  # or each process looks through all of it again
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = _exit_code(request["wait"])
        elif (answer := os.fork()) == 0:
            _become_nala(**request)
        print(answer, flush=True)


def _import_classes(settings: Any) -> None:
    """The modules of all that a configuration names."""
    if isinstance(settings, dict):
        if "class_path" in settings:
            importlib.import_module(settings["class_path"].rpartition(".")[0])
        settings = list(settings.values())
    for part in settings if isinstance(settings, list) else ():
        _import_classes(part)


def _exit_code(pid: int) -> int:
    end = time.monotonic() + LIMIT
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.killpg(pid, signal.SIGKILL)
            end += LIMIT
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(ended[1])


def _become_nala(words: list[str], folder: str, output: str, error: str, environment: Environment) -> None:
    code = 1
    try:
        os.setsid()  # so that a test can kill it and its children together
        os.chdir(folder)
        for stream, place in ((1, output), (2, error)):
            if stream == 2 and error == output:
                os.dup2(1, 2)
            else:
                os.dup2(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(environment)
        if "LOCAL_RANK" in environment:  # as a launcher sets it, and Lightning reads it when it is imported
            from lightning.pytorch.utilities import rank_zero_only

            rank_zero_only.rank = int(environment["LOCAL_RANK"])
        sys.argv = [str(Path(sys.executable).with_name("nala")), *words]
        from nala_platform.cli import main

        main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
