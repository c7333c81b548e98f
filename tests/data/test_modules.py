"""What holds for every data module: batches, order, augmentation, shares, prediction."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from PIL import Image

from nala_platform.data.images.bluemarble import BlueMarbleData
from nala_platform.data.images.digits import DigitsData
from nala_platform.data.images.image_folder import Augment, ImageFolderData, Pixels
from nala_platform.data.images.labels import Labels
from nala_platform.data.images.mask_folder import MaskFolderData
from nala_platform.data.images.views import View
from nala_platform.errors import UserError

EMBEDDED = {"digits": DigitsData, "bluemarble": BlueMarbleData}
SEGMENTATION = ("bluemarble", "masks")
ALL = ("digits", "bluemarble", "images", "masks")


@pytest.fixture
def make(request):
    """Makes the module of a kind; options go to its constructor."""

    def build(kind, **options):
        if kind in EMBEDDED:
            return EMBEDDED[kind](**{"batch_size": 64, **options})
        if kind == "images":
            augment = Augment(randaug="rand-m9-mstd0.5-inc1", re_prob=0.5)
            defaults = {"pixels": Pixels(size=32), "batch_size": 4, "augment": augment}
            return with_seed(ImageFolderData, str(request.getfixturevalue("class_tree")), **{**defaults, **options})
        root = request.getfixturevalue("mask_tree")
        view = View(crop=24, color_jitter=0.4, vflip=0.5)
        defaults = {"labels": Labels(num_classes=3), "batch_size": 2, "augment": view}
        return with_seed(MaskFolderData, str(root), **{**defaults, **options})

    return build


def with_seed(kind, root, seed=None, **options):
    """A module whose seed is always the run's, as if ``seed_everything`` had said it."""
    with pytest.MonkeyPatch.context() as patch:
        if seed is not None:
            patch.setenv("PL_GLOBAL_SEED", str(seed))
        return kind(root, **options)


def epochs(data, numbers):
    """The training batches of some epochs, as one dict a sample, in order."""
    loader = data.train_dataloader()
    found = {}
    for epoch in numbers:
        loader.sampler.set_epoch(epoch)
        found[epoch] = [
            (name, image, torch.as_tensor(target))
            for batch in loader
            for name, image, target in zip(batch["name"], batch["image"], batch["target"], strict=True)
        ]
    return found


def same(one, other):
    return [a[0] for a in one] == [b[0] for b in other] and all(
        torch.equal(x, y) for a, b in zip(one, other, strict=True) for x, y in zip(a[1:], b[1:], strict=True)
    )


@pytest.mark.parametrize("kind", ALL)
def test_batches_have_the_agreed_form(make, kind):
    data = make(kind)
    assert data.num_classes == len(data.class_names) and isinstance(data.class_names, tuple)
    assert len(data.mean) == len(data.std) == 3
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        batch = next(iter(loader))
        image, target = batch["image"], batch["target"]
        assert set(batch) == {"image", "target", "name"}
        assert image.dtype == torch.float32 and image.shape[1] == 3 and image.is_contiguous()
        assert target.dtype == torch.int64 and len(batch["name"]) == len(image) == len(target)
        assert all(isinstance(name, str) for name in batch["name"])
        if kind in SEGMENTATION:
            assert target.shape == (len(image), *image.shape[-2:])
            assert ((target < data.num_classes) | (target == data.ignore_index)).all()
            assert len(data.palette) == data.num_classes
        else:
            assert target.shape == (len(image),) and 0 <= target.min() <= target.max() < data.num_classes
        assert image.abs().max() < 6
    assert set(next(iter(data.predict_dataloader()))) == {"image", "name"}


@pytest.mark.parametrize("kind", ALL)
def test_augmentation_is_a_function_of_seed_epoch_and_index(make, kind):
    plain = epochs(make(kind), (0, 1))
    torch.manual_seed(99)  # the generators' history is of no account
    with_workers = epochs(make(kind, num_workers=2), (1, 0, 1))
    assert same(plain[0], with_workers[0]) and same(plain[1], with_workers[1])
    other_seed = epochs(make(kind, seed=1), (0,))
    assert not same(plain[0], other_seed[0]) and not same(plain[0], plain[1])
    first, second = ({name: image for name, image, _ in plain[epoch]} for epoch in (0, 1))
    changed = [not torch.equal(first[name], second[name]) for name in first.keys() & second.keys()]
    assert np.mean(changed) > 0.5  # the same picture looks different in another epoch


@pytest.mark.parametrize("kind", ALL)
def test_loading_leaves_the_global_generators_alone(make, kind):
    import random

    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    data = make(kind)
    for loader in (data.train_dataloader(), data.val_dataloader()):
        next(iter(loader))
    assert random.getstate() == states[0] and np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_out_batches_and_evaluation(make, kind, world):
    def ranks(**options):
        for rank in range(world):
            data = make(kind, **options)
            data.trainer = SimpleNamespace(global_rank=rank, world_size=world)
            yield data

    size = 2 if kind in ("images", "masks") else 16
    whole = [row[0] for row in epochs(make(kind, batch_size=size * world), (2,))[2]]
    shares = [[row[0] for row in epochs(data, (2,))[2]] for data in ranks(batch_size=size)]
    blocks = [[share[i : i + size] for share in shares] for i in range(0, len(shares[0]), size)]
    assert [name for block in blocks for part in block for name in part] == whole
    for split in ("val", "test"):
        loaders = [getattr(data, f"{split}_dataloader")() for data in ranks()]
        names = [name for loader in loaders for batch in loader for name in batch["name"]]
        alone = [name for batch in getattr(make(kind), f"{split}_dataloader")() for name in batch["name"]]
        assert sorted(names) == sorted(alone) and len(set(names)) == len(names)


@pytest.mark.parametrize("kind", ALL)
def test_evaluation_is_the_same_each_time(make, kind):
    first, second = next(iter(make(kind).val_dataloader())), next(iter(make(kind, seed=5).val_dataloader()))
    assert torch.equal(first["image"], second["image"]) and torch.equal(first["target"], second["target"])


@pytest.mark.parametrize("kind", ALL)
def test_predicting_a_folder_and_a_file(make, kind, noise, save, tmp_path_factory):
    folder = tmp_path_factory.mktemp("new")
    save(noise(30, 50), folder / "deep" / "a.png")
    Image.fromarray(noise(33, 33)).convert("CMYK").save(folder / "b.JPG")
    (folder / "notes.txt").write_text("no picture")
    names = [name for batch in make(kind, predict_path=str(folder)).predict_dataloader() for name in batch["name"]]
    assert names == ["b.JPG", "deep/a.png"]
    [batch] = make(kind, predict_path=str(folder / "deep" / "a.png")).predict_dataloader()
    assert batch["name"] == ["a.png"]
    if kind in SEGMENTATION:
        assert batch["image"].shape == (1, 3, 30, 50)
    else:
        assert batch["image"].shape == (1, 3, 32, 32)


@pytest.mark.parametrize("kind", ["images", "masks"])
def test_predict_path_is_looked_for_at_once(make, kind, tmp_path):
    with pytest.raises(UserError, match="nowhere does not exist"):
        make(kind, predict_path=str(tmp_path / "nowhere"))
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match="holds no picture"):
        make(kind, predict_path=str(tmp_path / "bare"))


@pytest.mark.parametrize("kind", ALL)
def test_settings_out_of_range_are_named(make, kind):
    for key, value in (("batch_size", 0), ("num_workers", -1), ("seed", -1))[: 3 if kind in EMBEDDED else 2]:
        with pytest.raises(UserError, match=f"data.{key} is {value}"):
            make(kind, **{key: value})


@pytest.mark.parametrize("kind", ALL)
def test_a_batch_larger_than_the_split_is_named(make, kind):
    with pytest.raises(UserError, match=r"fewer than one global batch of 100000.*lower --data.batch_size"):
        make(kind, batch_size=100000).train_dataloader()


@pytest.mark.parametrize("kind", ALL)
def test_protocol_and_baselines_are_plain(make, kind):
    import json

    data = make(kind)
    assert json.loads(json.dumps(data.protocol()))["images"]["val"] == len(data.items("val"))
    for scores in data.baselines().values():
        assert all(isinstance(value, float) and 0 < value < 1 for value in scores.values())
    assert set(data.baselines()) >= ({"majority class"} if kind != "masks" else set())


class Recorder(LightningModule):
    """Notes what it is given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained, self.validated, self.predicted = [], [], []

    def training_step(self, batch, batch_idx):
        self.trained.append((self.current_epoch, batch["name"]))
        return self.weight * batch["image"].mean()

    def validation_step(self, batch, batch_idx):
        self.validated += batch["name"]

    def predict_step(self, batch, batch_idx):
        self.predicted += batch["name"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("kind", ["digits", "masks"])
def test_lightning_trains_in_the_order_of_each_epoch_and_predicts_all(make, kind, tmp_path_factory):
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=tmp_path_factory.mktemp("run"),
    )
    data, model = make(kind), Recorder()
    trainer.fit(model, datamodule=data)
    for epoch, rows in epochs(make(kind), (0, 1)).items():
        seen = [name for at, names in model.trained if at == epoch for name in names]
        assert seen == [row[0] for row in rows]
    trainer.predict(model, datamodule=data, return_predictions=False)
    assert model.predicted == [name for batch in make(kind).predict_dataloader() for name in batch["name"]]
    # two sanity batches come before the two epochs
    assert len(model.validated) > 2 * len(data.items("val"))


def test_a_resume_with_a_sample_less_says_so(class_tree, tmp_path, capsys):
    """The natural end of a run that a bad file has stopped: it is left out, and the order of the epoch is another."""
    state = ImageFolderData(str(class_tree)).state_dict()
    (tmp_path / "bad.txt").write_text("train/cat/00.png\n")
    for exclude, said in ((None, ""), (str(tmp_path / "bad.txt"), "now {}), and so the order of an epoch")):
        data = ImageFolderData(str(class_tree), exclude=exclude)
        data.trainer = SimpleNamespace(state=SimpleNamespace(fn="fit"), is_global_zero=True)
        data.load_state_dict(state)
        told = capsys.readouterr().err
        assert said.format(state["samples"] - 1) in told if said else told == ""
