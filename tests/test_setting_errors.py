"""What a library says about a configured value is one line that names the key; a bug keeps its traceback."""

import pytest
import torch
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping

from nala_platform.errors import DivergedError, ExhaustedError, UserError
from nala_platform.failures import translated
from nala_platform.setting_checks import check_settings
from nala_platform.setting_errors import components, refuse_null

WEIGHTS = [torch.nn.Parameter(torch.zeros(2))]


def configured(key: str, class_path: str, **values: object) -> Namespace:
    config = Namespace(trainer=Namespace())
    config[key] = Namespace(class_path=class_path, init_args=Namespace(**values))
    return config


def line(config: Namespace, action) -> str:
    with pytest.raises(UserError) as caught, translated(config=config):
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("AdamW", {"lr": -1.0}, "model.optimizer.lr is -1.0: AdamW: Invalid learning rate: -1.0 ("),
        ("AdamW", {"betas": (1.5, 0.9)}, "model.optimizer.betas is (1.5, 0.9): AdamW: Invalid beta parameter"),
        ("AdamW", {"eps": -1.0}, "model.optimizer.eps is -1.0: "),
        ("AdamW", {"weight_decay": -0.5}, "model.optimizer.weight_decay is -0.5: "),
        ("AdamW", {"fused": True, "foreach": True}, "model.optimizer.fused is True and model.optimizer.for"),
        ("SGD", {"momentum": -2.0}, "model.optimizer.momentum is -2.0: SGD: Invalid momentum value: -2.0"),
        ("RMSprop", {"lr": 0.1, "alpha": -1.0}, "model.optimizer.alpha is -1.0: "),
        ("LBFGS", {"lr": 0.1}, "model.optimizer: LBFGS: LBFGS doesn't support per-parameter options"),
    ],
)  # fmt: skip
def test_an_optimizer_names_its_key(name: str, values: dict, said: str):
    groups = [{"params": WEIGHTS, "weight_decay": 0.0}, {"params": [torch.nn.Parameter(torch.zeros(2))]}]
    config = configured("model.optimizer", f"torch.optim.{name}", **values)
    assert line(config, lambda: getattr(torch.optim, name)(groups, **values)).startswith(said)


def test_an_optimizer_that_refuses_at_its_first_step():
    optimizer = torch.optim.SparseAdam(WEIGHTS)
    WEIGHTS[0].grad = torch.ones(2)
    said = line(configured("model.optimizer", "torch.optim.SparseAdam", lr=0.1), optimizer.step)
    assert said.startswith("model.optimizer: SparseAdam: SparseAdam does not support dense gradients")


def test_arithmetic_of_a_schedule():
    optimizer = torch.optim.SGD(WEIGHTS, lr=0.1)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 1, power=-1.0)
    config = configured("model.schedule", "torch.optim.lr_scheduler.PolynomialLR", power=-1.0)
    said = line(config, lambda: [(optimizer.step(), schedule.step()) for _ in range(3)])
    assert said.startswith("model.schedule.power is -1.0: PolynomialLR: ZeroDivisionError")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gradient_clip_algorithm": "nrm"}, "trainer.gradient_clip_algorithm is 'nrm': Trainer: "),
        ({"strategy": "deepspeed", "accelerator": "cpu"}, "trainer.strategy is 'deepspeed': "),
        ({"accelerator": "tpu"}, "trainer: Trainer: Requirement 'torch_xla"),
        ({"precision": "transformer-engine"}, "trainer.precision is 'transformer-engine': "),
        ({"devices": "x", "accelerator": "cpu"}, "trainer.devices is 'x': "),
    ],
)
def test_the_trainer_names_its_key(values: dict, said: str):
    config = Namespace(trainer=Namespace(**values))
    assert line(config, lambda: Trainer(**values, logger=False)).startswith(said)


def test_a_callback_that_fails_while_the_run_goes_on():
    config = Namespace(trainer=Namespace())
    path = "lightning.pytorch.callbacks.EarlyStopping"
    config.trainer.callbacks = [Namespace(class_path=path, init_args=Namespace(monitor="val/top2"))]
    callback = EarlyStopping("val/top2")
    said = line(config, lambda: callback._validate_condition_metric({"val/top1": torch.tensor(0.0)}))
    assert said.startswith("trainer.callbacks.monitor is 'val/top2': EarlyStopping: ") and "`val/top1`" in said


def test_a_folder_that_a_logger_cannot_make(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "logs")
    config = configured("trainer.logger", "lightning.pytorch.loggers.CSVLogger", save_dir=place)
    logger = CSVLogger(save_dir=place)
    with pytest.raises(UserError, match=r"cannot read .*logs.*: Not a directory"), translated(config=config):
        logger.log_metrics({"a": 1.0})


def test_a_folder_of_a_logger_whose_error_has_another_number():
    from lightning.pytorch.loggers import CSVLogger

    config = configured("trainer.logger", "lightning.pytorch.loggers.CSVLogger", save_dir="/proc/x")
    said = line(config, lambda: CSVLogger(save_dir="/proc/x").log_metrics({"a": 1.0}))
    assert said.startswith("trainer.logger.save_dir is '/proc/x': CSVLogger: ")


def test_a_package_that_is_missing_is_named_with_its_installation():
    config = configured("trainer.logger", "lightning.pytorch.loggers.WandbLogger", project="x")
    from lightning.pytorch.loggers import WandbLogger

    said = line(config, lambda: WandbLogger(project="x"))
    assert said.startswith("trainer.logger: WandbLogger: ") and "pip install" in said


class Broken(Callback):
    """A user's own code with a bug."""

    def __init__(self, count: int = 0) -> None:
        torch.nn.Dropout(None)  # type: ignore[arg-type]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        raise ValueError("count")


@pytest.mark.parametrize("action", [Broken, lambda: Broken.on_fit_start(None, None, None), lambda: {}["count"]])
def test_a_bug_is_not_called_a_mistake(action):
    config = configured("trainer.callbacks", f"{__name__}.Broken", count=1)
    config.trainer.callbacks.class_path = "builtins.object"  # this module has no name to import by
    known = components(config)
    config = Namespace(trainer=Namespace())
    assert known
    with pytest.raises((TypeError, ValueError, KeyError, AttributeError)) as caught, translated(config=config):
        action()
    assert not isinstance(caught.value, UserError)


def test_a_failing_operator_under_the_trainer_is_a_bug():
    class Module(LightningModule):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return (batch @ torch.zeros(3)).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    trainer = Trainer(
        max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    )
    config = Namespace(trainer=Namespace(max_steps=1))
    with pytest.raises(RuntimeError, match="size mismatch") as caught, translated(config=config):
        trainer.fit(Module(), torch.utils.data.DataLoader(torch.zeros(4, 2)))
    assert not isinstance(caught.value, UserError)


def test_lightning_s_own_word_for_a_mistake_and_errors_of_ours_pass():
    def misconfigured() -> None:
        raise MisconfigurationException("two\n  lines")

    def diverged() -> None:
        raise DivergedError("nan")

    assert line(Namespace(trainer=Namespace()), misconfigured) == "two lines"
    with pytest.raises(DivergedError), translated(config=Namespace(trainer=Namespace())):
        diverged()


def test_memory_that_is_exhausted_in_a_constructor_is_not_a_mistake():
    def build() -> None:
        try:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        except RuntimeError as error:
            raise ValueError("cannot build") from error

    with pytest.raises(ExhaustedError), translated(config=Namespace(trainer=Namespace())):
        build()


def test_null_where_none_is_taken():
    known = components(configured("model.optimizer", "torch.optim.AdamW", lr=None, foreach=None))
    with pytest.raises(UserError, match=r"^model\.optimizer\.lr is null: it must be .*; leave .* its default 0\.001$"):
        refuse_null(known)
    refuse_null(components(configured("model.optimizer", "torch.optim.AdamW", foreach=None)))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("seed_everything", -1, "it must be from 0 to 4294967295"),
        ("seed_everything", 2**32, "it must be from 0 to 4294967295"),
        ("bad_samples", -1, "it must be 0 or more"),
        ("trainer.accumulate_grad_batches", 0, "it must be 1 or more"),
        ("trainer.log_every_n_steps", 0, "it must be 1 or more"),
        ("trainer.check_val_every_n_epoch", 0, "it must be 1 or more"),
        ("trainer.num_nodes", 0, "it must be 1 or more"),
        ("trainer.num_nodes", 2, "start the run by torchrun or srun"),
        ("trainer.max_epochs", -2, "it must be -1 or more"),
        ("trainer.max_epochs", 0, "so nothing would be trained: raise it"),
        ("trainer.max_steps", 0, "so nothing would be trained: raise it"),
        ("trainer.limit_train_batches", 0, "so nothing would be trained: raise it"),
        ("trainer.limit_val_batches", 1.5, "or a share of them from 0.0 to 1.0"),
        ("trainer.limit_test_batches", -1, "or a share of them from 0.0 to 1.0"),
        ("trainer.overfit_batches", -0.5, "or a share of them from 0.0 to 1.0"),
        ("trainer.val_check_interval", 0, "--trainer.limit_val_batches 0 leaves validation out"),
        ("trainer.val_check_interval", "soon", "DD:HH:MM:SS"),
        ("trainer.max_time", "00:00:00:00", "DD:HH:MM:SS"),
        ("trainer.max_time", "5 minutes", "DD:HH:MM:SS"),
        ("trainer.max_time", {"minuts": 5}, "DD:HH:MM:SS"),
        ("trainer.gradient_clip_val", -1.0, "it must be 0 or more"),
        ("trainer.gradient_clip_algorithm", "nrm", "did you mean 'norm'?"),
        ("trainer.profiler", "simpel", "did you mean 'simple'?"),
        ("trainer.strategy", "dpd", "did you mean 'ddp'?"),
        ("trainer.accelerator", "cpuu", "did you mean 'cpu'?"),
        ("trainer.devices", 0, "it is the number of processes, from 1 to"),
        ("trainer.devices", "100000", "it is the number of processes, from 1 to"),
    ],
)
def test_a_value_out_of_range_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, key: str, value: object, said: str
):
    for name in ("MASTER_ADDR", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError) as caught:
        check_settings({"trainer.accelerator": "cpu", key: value}, "fit")
    assert str(caught.value).startswith(f"{key} is {value!r}") and said in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"seed_everything": True, "trainer.max_epochs": -1, "trainer.max_steps": -1, "trainer.max_time": None},
        {"trainer.limit_val_batches": 0, "trainer.limit_test_batches": 0, "trainer.limit_train_batches": 0.5},
        {"trainer.val_check_interval": 1.0, "trainer.max_time": "00:00:10:00", "trainer.gradient_clip_val": None},
        {"trainer.val_check_interval": "00:00:00:30", "trainer.max_time": {"minutes": 5}, "trainer.devices": "2"},
        {"trainer.fast_dev_run": True, "trainer.max_steps": 0, "trainer.devices": "auto", "trainer.strategy": "ddp"},
        {"trainer.profiler": "mine.Profiler", "trainer.log_every_n_steps": None, "trainer.num_sanity_val_steps": -1},
    ],
)
def test_values_in_range_pass(settings: dict):
    check_settings({"trainer.accelerator": "cpu", **settings}, "fit")


@pytest.mark.parametrize(
    ("subcommand", "key"),
    [("validate", "limit_val_batches"), ("test", "limit_test_batches"), ("predict", "limit_predict_batches")],
)
def test_a_command_that_would_do_nothing_says_so(subcommand: str, key: str):
    with pytest.raises(UserError, match=rf"^trainer\.{key} is 0, so nothing would be (scored|predicted): raise it$"):
        check_settings({f"trainer.{key}": 0}, subcommand)


def test_a_run_is_scored_though_it_would_train_no_step():
    check_settings({"trainer.max_steps": 0}, "test")
