"""Reads several command lines as ``nala`` does, in one process: importing what reads them takes longer than reading.

``python -m nala_platform.dry_run`` reads a JSON list of command lines from its standard input. Each is a list of words
and does no work, such as ``fit … --print_config``. The last line that it prints is JSON, and tells of the first command
line that fails: ``{"code": 2, "error": "nala: error: …"}``; the code is 0 if none fails.
"""

import io
import json
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout

from nala_platform import cli, streams


def main() -> None:
    """Read the command lines one by one, until one fails."""
    streams.prepare()
    code, error = 0, ""
    for words in json.load(sys.stdin):
        code, error = run(words)
        if code:
            break
    print("\n" + json.dumps({"code": code, "error": error if code else ""}))


def run(words: list[str]) -> tuple[int, str]:
    """The exit code of ``nala words``, and what it prints as errors."""
    printed = io.StringIO()
    sys.argv = ["nala", *words]
    with redirect_stdout(io.StringIO()), redirect_stderr(printed):
        try:
            cli.main()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            return code, printed.getvalue()
        except Exception:  # a bug: told to the end, as by a process of its own
            traceback.print_exc()
            return 1, printed.getvalue()
    return 0, printed.getvalue()


if __name__ == "__main__":
    main()
