"""What the libraries underneath say: silenced where no user can act on it, passed on where one should."""

import logging
import os
import re
import sys
import warnings
from typing import TextIO


class DroppedKeys(logging.Handler):
    """Says which keys a changed class path left without a home; jsonargparse only tells its debug log."""

    _TEXT = re.compile(r"Due to class_path change from '(.*)' to '(.*)', discarding init_args: (\{.*\})", re.DOTALL)

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._said: set[str] = set()
        self.logger = logging.getLogger("nala.parser")  # a registered one: jsonargparse copies it by its name
        self.logger.setLevel(logging.DEBUG)
        self.logger.propagate = False
        self.logger.handlers = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line for a change of class that drops keys."""
        message = record.getMessage()
        if message not in self._said and (found := self._TEXT.search(message)):
            self._said.add(message)
            old, new, keys = found.groups()
            if new == "nala_platform.data.language.prompts.PromptData":  # the command line's own choice, not the user's
                return
            print(f"nala: note: {new} instead of {old} drops {keys}", file=sys.stderr)


_IRRELEVANT = (
    r".*does not have many workers.*",
    r".*LeafSpec.*",
    r".*Grad strides do not match bucket view strides.*",  # depthwise kernels; DDP copies, and is right
    r".*It is recommended to use `self.log\('(val/|test/|train/loss_epoch).*",  # reduced over processes already
    r".*torch.distributed.nn.functional.all_gather is deprecated.*",  # Lightning's own call
    r".*callbacks used to create the checkpoint need to be provided.*",
    r".*The `srun` command is available.*",
    r".*is smaller than the logging interval.*",
    r".*Checkpoint directory .* exists and is not empty.*",
    r".*your dataloader is not resumable.*",  # the data module is: it is told the position
    r".*The dirpath has changed from.*",
    r".*might cause the trace to be incorrect.*",  # a logger draws its graph from it
    r".*Torchinductor does not support code generation for complex operators.*",  # the bench says how fast it is
)
"""Texts of Lightning's and torch's warnings that come on every run, and that no user can act on."""

_LOUD = {
    "lightning.pytorch": logging.WARNING,
    "lightning.fabric": logging.WARNING,
    "torch.utils.cpp_extension": logging.ERROR,  # that there is no GPU, at each compilation for the CPU
}
"""Loggers, and the level from which on a user wants to hear of them."""


def quiet() -> None:
    """Let a process of the command line print what `nala` has to say, and of the libraries what a user can act on.

    Other libraries' progress bars are off, their deprecations (of calls that other libraries make) and what they say on
    every run are silent, and any other warning is one line on stderr. Python's own ``-W`` and ``PYTHONWARNINGS`` show
    all of them. Called in each process before the libraries are imported, which read the variables then, and again
    after Lightning is, which sets the level of its loggers.
    """
    for variable in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(variable, "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    if sys.warnoptions:
        return
    for name, level in _LOUD.items():
        logging.getLogger(name).setLevel(level)
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category)
    for text in _IRRELEVANT:
        warnings.filterwarnings("ignore", text)
    warnings.showwarning = _show


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"nala: warning: {' '.join(str(message).split())}", file=file or sys.stderr)
