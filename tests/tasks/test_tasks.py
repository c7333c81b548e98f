"""The tasks' losses against closed forms, and the refusals that every task makes."""

import pytest
import torch
from nala_platform.tasks.classification import ClassificationTask
from nala_platform.tasks.language_modeling import LanguageModelingTask
from nala_platform.tasks.segmentation import SegmentationTask
from nala_platform.tasks.super_resolution import SuperResolutionTask
from torch import Tensor, nn

from nala_platform.errors import DivergedError, UserError
from nala_platform.models import language_positions
from nala_platform.models.language import causal_lm
from nala_platform.models.segmenter import Segmenter
from nala_platform.models.upscaler import Upscaler
from nala_platform.models.vision import classifier
from nala_platform.optim import WarmupCosine


class Fixed(nn.Module):
    """Returns the logits it was given, whatever the image."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.num_classes = logits.shape[1]
        self.logits = nn.Parameter(logits)

    def forward(self, image: Tensor) -> Tensor:
        return self.logits[: len(image)]


def task(kind: type, logits: Tensor, **options):
    return kind(Fixed(logits), torch.optim.AdamW, WarmupCosine, **options)


def log_softmax(logits: Tensor) -> Tensor:
    return logits - logits.exp().sum(1, keepdim=True).log()


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5]])
def test_segmentation_loss_is_the_weighted_mean_over_counted_pixels(weights: list[float] | None):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 3, 5, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 3, (2, 3, 5), generator=generator)
    target[0, 0] = 255
    loss = task(SegmentationTask, logits, class_weights=weights).step({"image": torch.zeros(2), "target": target}).loss
    total, norm = 0.0, 0.0
    logs = log_softmax(logits)
    for b, y, x in (target != 255).nonzero().tolist():
        label = int(target[b, y, x])
        weight = 1.0 if weights is None else weights[label]
        total, norm = total - weight * float(logs[b, label, y, x]), norm + weight
    assert float(loss) == pytest.approx(total / norm, rel=1e-6)


def test_a_batch_of_ignored_pixels_has_loss_zero_and_gradient_zero():
    model = task(SegmentationTask, torch.randn(1, 3, 2, 2))
    loss = model.step({"image": torch.zeros(1), "target": torch.full((1, 2, 2), 255)}).loss
    loss.backward()
    assert float(loss) == 0.0
    assert torch.equal(model.network.logits.grad, torch.zeros(1, 3, 2, 2))


def test_classification_smooths_labels_in_training_only():
    logits, target = torch.randn(4, 5), torch.tensor([0, 4, 2, 2])
    model = task(ClassificationTask, logits, label_smoothing=0.2)
    batch = {"image": torch.zeros(4, 3, 2, 2), "target": target}
    logs = log_softmax(logits)
    hard = -logs[range(4), target].mean()
    soft = 0.8 * hard - 0.2 * logs.mean()
    assert float(model.train().step(batch).loss) == pytest.approx(float(soft), rel=1e-5)
    assert float(model.eval().step(batch).loss) == pytest.approx(float(hard), rel=1e-5)


@pytest.mark.parametrize("size", [4, 5])
def test_mixup_trains_on_soft_labels_that_sum_to_one(size: int):
    model = task(
        ClassificationTask, torch.randn(size, 3), mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1
    ).train()
    image = torch.randn(size, 3, 8, 8)
    kept = image.clone()
    step = model.step({"image": image, "target": torch.arange(size) % 3})
    assert torch.equal(image, kept)
    assert step.target.shape == (size, 3)
    torch.testing.assert_close(step.target.sum(1), torch.ones(size))
    assert torch.isfinite(step.loss)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: task(ClassificationTask, torch.zeros(1, 1)), "num_classes must be 2 or more"),
        (lambda: task(ClassificationTask, torch.zeros(1, 3), label_smoothing=1.0), "label_smoothing"),
        (lambda: task(ClassificationTask, torch.zeros(1, 3), cutmix_alpha=-0.1), "model.cutmix_alpha is -0.1"),
        (lambda: task(SegmentationTask, torch.zeros(1, 3, 1, 1), class_weights=[1.0]), "1 entries, but .* 3 classes"),
    ],
)
def test_bad_settings_are_refused(make, message: str):
    with pytest.raises(UserError, match=message):
        make()


class Data:
    num_classes, ignore_index, class_names = 3, 255, ("a", "b", "c")


class Trainer:
    datamodule, global_step = Data, 7


def test_data_and_network_must_agree_on_classes_and_ignored_label():
    model = task(SegmentationTask, torch.zeros(1, 4, 1, 1))
    model._trainer = Trainer
    with pytest.raises(UserError, match=r"num_classes 3, but .* 4: add --model.network.num_classes 3"):
        model.setup("fit")
    model = task(SegmentationTask, torch.zeros(1, 3, 1, 1), ignore_index=254)
    model._trainer = Trainer
    with pytest.raises(UserError, match=r"--model.ignore_index 255"):
        model.setup("fit")


def test_a_loss_that_is_not_finite_ends_the_run():
    model = task(SegmentationTask, torch.zeros(1, 3, 1, 1))
    model._trainer = Trainer
    model.on_validation_start()
    model._last_loss = torch.tensor(float("nan"))
    with pytest.raises(DivergedError, match="nan at step 7: lower the learning rate"):
        model.on_validation_start()


class FirstSamples:
    """A data module whose loader holds these samples."""

    def __init__(self, samples: list[dict[str, Tensor]]) -> None:
        self.loader = torch.utils.data.DataLoader(samples, batch_size=2)

    def train_dataloader(self):
        return self.loader


IMAGE, TOKENS = {"image": torch.rand(3, 40, 33)}, {"tokens": torch.arange(12), "bytes": torch.ones(11)}
EVERY_TASK = {
    "cls": (ClassificationTask, lambda: classifier(num_classes=3), IMAGE),
    "seg": (SegmentationTask, lambda: Segmenter(num_classes=3), IMAGE),
    "sr": (SuperResolutionTask, Upscaler, IMAGE),
    "lm": (LanguageModelingTask, lambda: causal_lm(size="nano", vocab_size=50), TOKENS),
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", EVERY_TASK)
def test_a_task_is_called_as_its_network_and_traced_for_a_loggers_graph(name: str, monkeypatch: pytest.MonkeyPatch):
    """``TensorBoardLogger(log_graph=True)`` traces the task, strictly, on a first sample, before it ran."""
    monkeypatch.setattr(language_positions, "_kept_frequencies", {})
    kind, make, sample = EVERY_TASK[name]
    torch.manual_seed(0)
    model = kind(make(), torch.optim.AdamW, WarmupCosine).eval()
    assert model.example_input_array is None
    model._trainer = type("Trainer", (), {"datamodule": FirstSamples([sample, sample])})
    given = model.example_input_array
    assert torch.equal(given, next(iter(sample.values()))[None])
    traced = torch.jit.trace(model, given, strict=True)(given)
    found, expected = model(given), model.network(given)
    assert type(found) is type(expected)
    tensor = (lambda out: out.logits) if name == "lm" else (lambda out: out)
    assert torch.equal(tensor(found), tensor(expected))
    torch.testing.assert_close(traced[0] if name == "lm" else traced, tensor(expected), rtol=1e-4, atol=1e-4)
