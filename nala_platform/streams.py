"""The streams and the encoding that a ``nala`` process works with, whatever shell, service or locale starts it."""

import codecs
import io
import os
import sys

_TERMINAL = "NALA_TERMINAL_ENCODING"  # tells the process that runs in UTF-8 mode what its terminal reads


def prepare() -> None:
    """Open the standard streams that are closed, and let text be UTF-8 in every library.

    A locale such as ``C`` or ``de_DE.ISO-8859-1`` has Python read and write files in another encoding, and take the
    names of files for something else than what they are. Python's UTF-8 mode is chosen when it starts, so this process
    starts once more then. What is printed stays in the locale's encoding; a character that it lacks ends no run.
    """
    _open_closed()
    _start_in_utf8()
    encoding = os.environ.pop(_TERMINAL, None)  # not for the processes that this one starts
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="replace" if stream is sys.stdout else "backslashreplace")


def _open_closed() -> None:
    """A closed stream, as ``nala … >&-`` gives, is nowhere: else the next file that is opened would take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            place = os.open(os.devnull, os.O_RDWR)
            if place != number:
                os.dup2(place, number)
                os.close(place)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="replace", closefd=False))


def _start_in_utf8() -> None:
    is_utf8 = codecs.lookup(sys.getfilesystemencoding()).name == "utf-8"
    if is_utf8 or _TERMINAL in os.environ or not sys.executable:
        return
    terminal = sys.stdout.encoding if isinstance(sys.stdout, io.TextIOWrapper) else "utf-8"
    environment = {**os.environ, "PYTHONUTF8": "1", _TERMINAL: terminal}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
