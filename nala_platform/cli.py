"""``nala``: the command. Light to start: ``nala --help`` and ``nala tasks`` import no torch."""

import importlib
import os
import signal
import sys
import traceback

from nala_platform import argv, notices, prompting, streams
from nala_platform.errors import FIRST_SIGNAL, NalaError, StoppedError, UserError, from_os_error, near

HELP = """\
nala: train, compare and ship models built on norm-aware linear attention

  nala fit --task TASK [--KEY VALUE ...]   train, then score the test split at the best checkpoint
  nala fit --resume RUN                    go on with a run that was stopped or killed, as if it never was
  nala validate RUN | test RUN             score a run again           (RUN: its folder, or a .ckpt in it)
  nala predict RUN --data.predict_path P   write predictions for a picture or a folder of pictures
  nala generate RUN --prompt "The "        let a language model go on with a text; --seed, --temperature, …
  nala evaluate RUN --tasks piqa,boolq     score a language model on tasks of lm-evaluation-harness
  nala export RUN FOLDER                   write a language model as a Hugging Face folder
  nala sweep STUDY --workers 2 [-- --KEY VALUE ...]   search: smoke, alpha, alpha_warmup_lr, attention, or a YAML
  nala sweep --resume DIR | status DIR | doctor DIR   go on, look, mend
  nala verify-resume --task TASK [...]     kill such a run, resume it, and say whether it ends the same to the bit
  nala check-data --task TASK --data.…     read every sample first: what is there, what is wrong; --fix-list F
  nala bench attention --backward --output DIR   time and memory of attention against the number of tokens
  nala bench step --output DIR             one more token in generation, against the tokens before it
  nala bench memory --output DIR           peak memory of super-resolution against the number of tokens
  nala bench model --task TASK             a task's training step and inference, and the attention's share of them
  nala bench guarantees --task TASK [...]  what resume, average and log cost a step, against a bare PyTorch loop
  nala tasks                               the tasks and their defaults

  --config FILE          a YAML file, or the name of one that is shipped; typed keys beat files
  --name NAME            ends the run folder's name: runs/<task>/<time>-NAME
  --print_config         show the complete configuration instead of running
  nala fit --help        every key; with --task TASK those of that task

  nala fit --task seg                                   on embedded satellite tiles, minutes on two cores
  nala fit --task seg --model.network.attention softmax the same recipe with another attention
"""

# Set to anything: the traceback that led to an error is printed before its line.
TRACEBACK_VARIABLE = "NALA_TRACEBACK"

# Commands that are no single Lightning run: each is the function `main` of a module, loaded when it is called.
APART = {
    "bench": "nala_platform.bench",
    "check-data": "nala_platform.check.command",
    "evaluate": "nala_platform.evaluate",
    "export": "nala_platform.export",
    "sweep": "nala_platform.sweeps.command",
    "verify-resume": "nala_platform.verify",
}


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and an `ExitCode`."""
    streams.prepare()
    try:
        _dispatch(sys.argv[1:])
    except StoppedError as error:
        # the first process speaks for all; another's exit code that is not 0 would have its launcher kill the first
        if int(os.environ.get("LOCAL_RANK", 0)) == 0:
            print(f"nala: {error}", file=sys.stderr)
            sys.exit(error.code)
    except NalaError as error:
        if str(error):  # else another process of the group has said it
            _complain(error)
        sys.exit(error.code)
    except BrokenPipeError:  # the reader has seen enough, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains when it closes the pipe
        sys.exit(FIRST_SIGNAL + signal.SIGPIPE)
    except OSError as error:
        if (ours := from_os_error(error)) is None:
            raise
        _complain(ours)
        sys.exit(ours.code)
    except KeyboardInterrupt:
        print("nala: interrupted", file=sys.stderr)
        sys.exit(FIRST_SIGNAL + signal.SIGINT)


def _dispatch(words: list[str]) -> None:
    command = words[0] if words else "--help"
    if command in ("--help", "-h", "help"):
        print(HELP, end="")
    elif command == "tasks":
        _print_tasks()
    elif command in (*argv.COMMANDS, "generate"):
        expanded = argv.expand(prompting.rewritten(words))
        _ready_for_work()
        from nala_platform.experiment import run  # heavy: torch and Lightning, only now that there is work to do

        run(expanded)
    elif command in APART:
        _ready_for_work()
        importlib.import_module(APART[command]).main(words[1:])
    else:
        known = [*argv.COMMANDS, "generate", *APART, "tasks"]
        raise UserError(f"no command {command!r}{near(command, known)} Commands: {', '.join(known)}")


def _ready_for_work() -> None:
    # Threads that spin while they wait starve the data loader and other runs: on two busy cores that cost a factor
    # of ten. A thousand turns, some tens of microseconds, they may: the next operator on a block of attention comes
    # within that time, and to wake a thread for each costs a quarter of it; with two runs on the cores it costs
    # nothing, where 20,000 cost a factor of five. Read when torch is loaded; variables that are set stand.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    notices.quiet()
    sys.path.append(os.getcwd())  # a class path may name a module of the user's own, as with python -m


def _print_tasks() -> None:
    rows = [("task", "what", "default data", "default network", "judged by"), *argv.tasks()]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _complain(error: Exception) -> None:
    # A data loader's worker wraps the error in the text of its traceback; the last line is what was raised.
    text = str(error)
    if text.startswith("Caught "):
        text = text.strip().rsplit(f"{type(error).__name__}: ", 1)[-1]
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    print(f"nala: error: {text}", file=sys.stderr)
