"""Real ``nala`` processes without the seconds that importing takes: a parent that has imported all forks them.

Run as a program it reads one JSON object a line: ``{"words": [...], "folder": "...", "output": "..."}`` starts
``nala words`` in that folder and answers its process id; ``{"wait": pid}`` answers its exit code, negative for a
signal. It imports and never computes, so no thread of torch's exists when it forks.
"""

import importlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

Environment = dict[str, str]


class Zygote:
    """Starts ``nala`` processes; use as a context."""

    def __enter__(self) -> "Zygote":
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "RAYON_NUM_THREADS": "1"}
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
        request = {"words": words, "folder": str(folder), "output": str(folder / output)}
        return self._ask({**request, "environment": environment or {}})

    def wait(self, pid: int) -> int:
        """Its exit code; minus the number of the signal that ended it."""
        return self._ask({"wait": pid})

    def run(self, folder: Path, *words: str) -> str:
        """What a command that ends well prints."""
        code = self.wait(self.start(folder, *words))
        text = (folder / "output.txt").read_text()
        assert code == 0, text
        return text

    def _ask(self, request: dict) -> int:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _serve() -> None:
    for name in ("experiment", "models.vision", "models.segmenter", "models.upscaler", "models.language"):
        importlib.import_module(f"nala_platform.{name}")
    for name in ("images.digits", "images.bluemarble", "images.photos", "language.pydocs"):
        importlib.import_module(f"nala_platform.data.{name}")
    for name in ("classification", "segmentation", "super_resolution", "language_modeling"):
        importlib.import_module(f"nala_platform.tasks.{name}")
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        elif (answer := os.fork()) == 0:
            _become_nala(**request)
        print(answer, flush=True)


def _become_nala(words: list[str], folder: str, output: str, environment: Environment) -> None:
    code = 1
    try:
        os.setsid()  # so that a test can kill it and its children together
        os.chdir(folder)
        handle = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(handle, stream)
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
