"""The data module that a command line of ``nala fit`` would train on, built alone."""

from typing import Any

from jsonargparse import Namespace

from nala_platform import argv
from nala_platform.data.base import DataModule
from nala_platform.errors import UserError
from nala_platform.experiment import Experiment
from nala_platform.failures import translated
from nala_platform.notices import quiet
from nala_platform.runs.lock import RunLock


def build(words: list[str]) -> DataModule:
    """The data module, without model or trainer; nothing is written.

    Args:
        words: what would follow ``nala fit``.

    Raises:
        UserError: a key, value or file is wrong.
    """
    if argv.typed_value(words, "--resume") is not None:
        raise UserError(
            "nala check-data begins no run: name the data by --task, --config and --data.… without --resume"
        )
    quiet()  # once more: Lightning has set the level of its loggers
    with translated():
        return DataAlone(argv.expand(["fit", *words]), RunLock()).datamodule


class DataAlone(Experiment):
    """Parses what a run parses, and builds its data."""

    def instantiate_classes(self) -> None:
        """The data alone."""
        name = str(self.subcommand)
        with self.translated():
            built: Any = self._parser(name).instantiate(Namespace(data=self.config[name].data))
        self.datamodule = built.data

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing is run."""
