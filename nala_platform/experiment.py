"""One run from a parsed command line: LightningCLI, with run folders, one-line errors and a test after the fit."""

import os
import shutil
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only

from nala_platform import runs
from nala_platform.argv import typed_value
from nala_platform.callbacks.bad_samples import BadSamples
from nala_platform.callbacks.checkpoint import RunCheckpoint
from nala_platform.callbacks.costs import Costs
from nala_platform.callbacks.csv_log import CSVLog
from nala_platform.callbacks.curves import Curves
from nala_platform.callbacks.ema import EMA
from nala_platform.callbacks.monitors import Monitors
from nala_platform.callbacks.progress import progress
from nala_platform.callbacks.report import Report
from nala_platform.callbacks.reporter import sweep_reporter
from nala_platform.callbacks.resume import ExactResume
from nala_platform.callbacks.skipped import SkippedInputs
from nala_platform.callbacks.start import OnTrainStart, SameFolder
from nala_platform.callbacks.stop import StopSignals
from nala_platform.data.images.image_file import MAX_IMAGE_PIXELS, set_max_image_pixels
from nala_platform.errors import StorageError, UserError
from nala_platform.failures import translated
from nala_platform.group import Group
from nala_platform.notices import DroppedKeys, quiet
from nala_platform.parse_errors import explain
from nala_platform.parser import Parser
from nala_platform.paths import PathOrName, StrPath, shown
from nala_platform.resumption import Resumption, saved, to_score
from nala_platform.runs.checkpoint_file import CheckpointFile
from nala_platform.runs.lock import RunLock
from nala_platform.setting_checks import check_backend, check_settings, refuse_what_a_run_decides
from nala_platform.setting_errors import components, refuse_null

# The processes that Lightning starts for DDP run this same command; they find the first one's folder here.
FOLDER_VARIABLE = "NALA_RUN_FOLDER"
_Checkpoint = Literal["best", "last", "hpc", "registry"] | str | PathOrName | None


def run(words: list[str]) -> None:
    """Parse ``words`` (as `nala_platform.argv.expand` gives them) and do what they say.

    Raises:
        UserError: a key, value or file is wrong; the message is one line.
    """
    quiet()  # once more: Lightning has set the level of its loggers
    with translated(typed_value(words, "--ckpt_path")), RunLock() as lock:
        Experiment(words, lock)


class Experiment(LightningCLI):
    """A run: parse, build, write the run folder, train and score.

    Adds to LightningCLI: ``--task``, ``--name``, ``--runs_dir``, ``--folder``, ``--resume``, ``--reset``,
    ``--compile``, ``--bad_samples``, ``--max_image_pixels``, ``--report.metrics``, ``--checkpoint.*`` and ``--ema.*``;
    the run folder with its complete ``config.yaml``; the test split at the best checkpoint after a fit.

    Args:
        words: the expanded command line.
        lock: taken by the first process of a fit on the run folder.
    """

    def __init__(self, words: list[str], lock: RunLock) -> None:
        self.lock = lock
        self.resumption: Resumption | None = None
        self.stop, self.group, self.skipped = StopSignals(), Group(), SkippedInputs()
        dropped = DroppedKeys()
        options = {"logger": dropped.logger, "allow_abbrev": False}
        super().__init__(
            args=words,
            parser_class=Parser,
            parser_kwargs={**options, **{name: dict(options) for name in self.subcommands()}},
            save_config_callback=None,
            seed_everything_default=0,
            auto_configure_optimizers=False,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's four, without its own table of results: `Report` prints one."""
        arguments = LightningCLI.subcommands()
        ours = {name: {"ckpt_path", "verbose"} if name in ("validate", "test") else {"ckpt_path"} for name in arguments}
        return {name: arguments[name] | ours[name] for name in arguments}

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        ours: dict[str, Any] = {"verbose": False} if subcommand in ("validate", "test") else {}
        settings = self.config_init[subcommand]
        ours["ckpt_path"] = settings.ckpt_path if self.resumption is None else self.resumption.checkpoint
        return super()._prepare_subcommand_kwargs(subcommand) | {"weights_only": True} | ours

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the platform's own keys."""
        parser.add_argument("--task", type=str, help="Name of the task: nala tasks lists them.")
        parser.add_argument("--name", type=str, default="", help="Ends the run folder's name.")
        parser.add_argument("--runs_dir", type=StrPath, default="runs", help="Where run folders are made.")
        parser.add_argument("--folder", type=StrPath | None, default=None, help="The run folder; it must be new.")
        parser.add_argument("--resume", type=StrPath | None, default=None, help="Go on with the run in this folder.")
        parser.add_argument("--ckpt_path", type=_Checkpoint, default=None, help="A .ckpt file; best or last of a run.")
        parser.add_argument("--reset", type=str, default="", help="What begins anew: lr,scheduler,optimizer,data.")
        parser.add_argument("--compile", type=str | None, default=None, help="torch.compile's backend: inductor.")
        parser.add_argument("--bad_samples", type=int, default=0, help="Bad files that training passes by, at most.")
        parser.add_argument(
            "--max_image_pixels",
            type=int,
            default=MAX_IMAGE_PIXELS,
            help="Pictures of more pixels are refused; 0: no limit.",
        )
        parser.add_argument("--report.metrics", type=list[str], default=[], help="Metrics of the table and the curves.")
        parser.add_lightning_class_args(RunCheckpoint, "checkpoint")
        parser.add_argument("--ema.decay", type=float | None, default=None, help="Average the weights; null: do not.")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the expanded words; ``sys.argv`` keeps what was typed, for the processes that DDP starts."""
        try:
            self.config = parser.parse_args(args)
        except UserError as error:
            raise UserError(explain(str(error), args)) from error
        name = self.config.subcommand
        config = self.config[name]
        set_max_image_pixels(config.max_image_pixels)
        if config.resume is not None and name == "fit":
            if rank_zero_only.rank == 0:
                self.lock.take(runs.find_folder(config.resume))
            self.resumption = Resumption(config.resume, config.ckpt_path, config.reset)
            self.resumption.settle(config, self._parser(name).dump(config, skip_none=False))
        elif config.reset:
            raise UserError("--reset says what begins anew in a run that is resumed: add --resume RUN")
        check_settings(config, name)
        refuse_null(components(config))

    def _parse_ckpt_path(self) -> None:
        # LightningCLI would let the hyper-parameters in a checkpoint override, unsaid, what was typed.
        path = self.config[self.config.subcommand].get("ckpt_path")
        if self.resumption is None and self.config.subcommand == "fit" and path in ("best", "last"):
            raise UserError(f"--ckpt_path {path} means a checkpoint of a run: add --resume RUN")
        if path and path not in ("best", "last", "hpc", "registry") and not Path(path).is_file():
            raise UserError(f"no checkpoint at {path}: give --ckpt_path the path of a .ckpt file")

    def instantiate_classes(self) -> None:
        """Build what is configured."""
        with self.translated():
            super().instantiate_classes()

    def translated(self) -> AbstractContextManager[None]:
        """Inside, what a library says about a configured value is a `UserError`."""
        config = self.config[str(self.subcommand)]
        return translated(config.ckpt_path, config)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Make the trainer, its log and the callbacks that every run has."""
        settings = self.config_init[str(self.subcommand)]
        refuse_what_a_run_decides(settings.trainer)
        self.folder = self._make_folder(settings)
        try:
            return self._make_trainer(settings)
        except BaseException:
            self._discard_empty_folder()
            raise

    def _make_trainer(self, settings: Namespace) -> Trainer:
        config = {**settings.trainer, "default_root_dir": str(self.folder)}
        costs = Costs()
        report = Report(settings.report.metrics, self.config[str(self.subcommand)].seed_everything, costs)
        config["callbacks"] = [Monitors(), *_listed(config["callbacks"])]  # before those that it looks at
        callbacks: list[Callback] = [SameFolder(), costs, BadSamples(settings.bad_samples), report]
        config["plugins"] = [*_listed(config["plugins"]), CheckpointFile()]
        if self.subcommand == "fit":
            settings.checkpoint.stop = self.stop
            callbacks += [settings.checkpoint, Curves([f"val/{name}" for name in settings.report.metrics])]
            resumption = self.resumption
            callbacks.append(ExactResume(resumption.resets, resumption.is_finished) if resumption else ExactResume())
            if settings.ema.decay is not None:
                callbacks.append(EMA(settings.ema.decay))
            callbacks += sweep_reporter()
            if self.resumption is not None:
                callbacks.append(OnTrainStart(self._write_config))
            config["logger"] = [CSVLog(self.folder), *_listed(config["logger"])]
        else:
            callbacks.append(self.skipped)
            config["logger"] = _listed(config["logger"]) or False
        if config["enable_progress_bar"] is not False:
            callbacks.append(progress(settings.checkpoint.monitor))
            config["enable_progress_bar"] = isinstance(callbacks[-1], ProgressBar)
        # The run's checkpoint is written by our own callback; Lightning's would add a second one.
        config["enable_checkpointing"] = self.subcommand == "fit"
        trainer = self._instantiate_trainer(config, callbacks)
        self.group.adopt(trainer)
        return trainer

    def _make_folder(self, settings: Namespace) -> Path:
        if self.resumption is not None:
            return self.resumption.folder
        if rank_zero_only.rank != 0:
            return Path(os.environ.get(FOLDER_VARIABLE) or settings.folder or settings.runs_dir)
        if settings.ckpt_path and self.subcommand != "fit" and Path(settings.ckpt_path).parent.name == runs.CHECKPOINTS:
            parent, name = Path(settings.ckpt_path).parent.parent / str(self.subcommand), ""
        else:
            label = "" if self.subcommand == "fit" else str(self.subcommand)
            parent, name = Path(settings.runs_dir) / (settings.task or "own"), settings.name or label
        folder = runs.take_folder(Path(settings.folder)) if settings.folder else runs.new_folder(parent, name)
        if self.subcommand == "fit":
            self.lock.take(folder)
            runs.take_folder(folder)  # who held the lock may have begun a run here
        os.environ[FOLDER_VARIABLE] = str(folder)
        return folder

    def _run_subcommand(self, subcommand: str) -> None:
        """Write the configuration, run, and leave no empty folder behind a mistake."""
        try:
            if self.resumption is None:
                self._write_config()
            else:
                self.resumption.tidy()
                self.resumption.tell()
            listening = self.stop.listening() if subcommand == "fit" else nullcontext()
            with self.translated(), listening, self.group.together():
                super()._run_subcommand(subcommand)
        except SystemExit as error:  # Lightning leaves so after Ctrl-C
            if self.trainer.interrupted:
                raise KeyboardInterrupt from error
            raise
        except StorageError as error:
            what_is_saved = saved(self.folder) if subcommand == "fit" else ""
            self._discard_empty_folder()
            raise StorageError(f"{error}{what_is_saved}") from error
        except BaseException as error:
            self._discard_empty_folder(isinstance(error, UserError))
            raise

    def _write_config(self) -> None:
        if rank_zero_only.rank == 0:
            settings = self.config[str(self.subcommand)].clone()
            settings["folder"] = None  # of this run alone: what is run again, or scored, from the file has its own
            settings["runs_dir"] = shown(settings["runs_dir"])  # where another machine need not have this one's folders
            config = self._parser(str(self.subcommand)).dump(settings, skip_none=False)
            runs.write_atomic(self.folder / runs.CONFIG, config)

    def _discard_empty_folder(self, is_mistake: bool = False) -> None:
        """Remove a folder with nothing to resume from; with its log where a mistake in the settings ended the run."""
        empty = {runs.CONFIG, runs.LOCK} | ({runs.METRICS} if is_mistake else set())
        if self.resumption is not None or rank_zero_only.rank != 0:
            return
        with suppress(OSError):  # a folder that cannot be read or is gone: what ended the run is about to be told
            if {path.name for path in self.folder.iterdir()} <= empty:
                shutil.rmtree(self.folder)

    def after_predict(self) -> None:
        """Tell of inputs that were skipped, when all else is written."""
        self.skipped.check(str(self.folder))

    def before_fit(self) -> None:
        """Say what will run; compile it if asked to."""
        network = getattr(self.model, "network", self.model)
        if self.config.fit.compile is not None:
            check_backend(self.config.fit.compile)
            network.compile(backend=self.config.fit.compile)  # in place: its weights keep their names
        size = sum(parameter.numel() for parameter in network.parameters())
        if rank_zero_only.rank == 0:
            print(f"run folder: {shown(self.folder)}")
            print(
                f"{self.config.fit.task}: {type(network).__name__} with {size / 1e6:.2f} M parameters "
                f"on {type(self.datamodule).__name__}, {self.trainer.accelerator.__class__.__name__}",
                flush=True,
            )

    def after_fit(self) -> None:
        """Score the test split at the best checkpoint; see `nala_platform.resumption.to_score`."""
        if getattr(self.trainer, "fast_dev_run", False) or self.trainer.limit_test_batches == 0:
            return
        checkpoint = to_score(Path(self.trainer.default_root_dir))  # which all processes agree on
        if checkpoint is None:
            raise UserError(
                "no step was trained before --trainer.max_time was over: raise it"
                if self.config.fit.trainer.max_time is not None
                else "no step was trained: raise --trainer.max_epochs or --trainer.max_steps"
            )
        path = str(checkpoint)
        self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=path, weights_only=True, verbose=False)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, bool) or value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
