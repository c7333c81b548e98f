"""A mistake that a worker finds is the same one line as without workers."""

import pytest
import torch
from torch.utils.data import Dataset

from nala_platform.data.loader import Failure, Guarded, Loader, collate
from nala_platform.data.order import Draw, EvalOrder
from nala_platform.errors import UserError


class Items(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, draw):
        if draw.index == 3:
            raise UserError("x.png: the file is empty")
        return {
            "image": torch.full((3, 2, 2), draw.index + 10.0 * draw.epoch),
            "target": draw.index,
            "name": f"n{draw.index}",
        }


@pytest.mark.parametrize("workers", [0, 2])
def test_a_users_mistake_arrives_as_one_line(workers):
    loader = Loader(Guarded(Items()), 2, sampler=EvalOrder(6), num_workers=workers, collate_fn=collate)
    batches = iter(loader)
    first = next(batches)
    assert first["name"] == ["n0", "n1"] and first["target"].tolist() == [0, 1]
    with pytest.raises(UserError) as caught:
        next(batches)
    assert str(caught.value) == "x.png: the file is empty"


def test_plain_integers_are_draws_of_epoch_0():
    items = Guarded(Items())
    assert torch.equal(items[2]["image"], items[Draw(2, epoch=0)]["image"])
    assert items[Draw(2, epoch=1)]["image"].max() == 12


def test_other_errors_are_not_hidden():
    class Broken(Items):
        def __getitem__(self, draw):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Guarded(Broken())[0]


def test_different_sizes_in_a_batch_are_named():
    samples = [{"image": torch.zeros(3, 4, 5), "name": "a"}, {"image": torch.zeros(3, 6, 5), "name": "b"}]
    failure = collate(samples)
    assert isinstance(failure, Failure)
    assert "a is 4x5 and b 6x5" in failure.message and "eval_batch_size 1" in failure.message


def test_same_sizes_are_stacked():
    batch = collate([{"image": torch.zeros(3, 4, 5), "name": "a", "target": 1}] * 2)
    assert batch["image"].shape == (2, 3, 4, 5) and batch["name"] == ["a", "a"]
    assert batch["target"].dtype == torch.int64
