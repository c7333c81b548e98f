"""What the libraries underneath say: silenced where no user can act on it, passed on where one should."""

import logging
import re
import sys
import warnings


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


def quiet() -> None:
    """Silence what Lightning and torch say on every run and no user can act on."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for text in (
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
    ):
        warnings.filterwarnings("ignore", text)
