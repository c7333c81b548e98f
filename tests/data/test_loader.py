"""A mistake that a worker finds is the same one line as without workers."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from nala_platform.data.loader import ATTEMPTS, BAD, Failure, Guarded, Loader, collate, replacement
from nala_platform.data.order import Draw, EvalOrder, TrainOrder
from nala_platform.data.problems import BadFileError, Problem
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


class Pictures(Items):
    """Six samples, of which some files are bad."""

    def __init__(self, *bad):
        self.bad = bad

    def __getitem__(self, draw):
        if draw.index in self.bad:
            raise BadFileError(Problem("empty", Path(f"two\nlines{draw.index}.png"), "the file is empty"))
        return {"image": torch.full((3, 2, 2), float(draw.index)), "name": f"n{draw.index}"}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_prediction_skips_bad_files_and_names_each(workers, capsys):
    """Batches of what is left, in order; one without a sample left is not given out."""
    items = Guarded(Pictures(1, 2, 3), skips=True)
    loader = Loader(items, 2, sampler=EvalOrder(6), num_workers=workers, collate_fn=collate)
    batches = list(loader)
    assert [batch["name"] for batch in batches] == [["n0"], ["n4", "n5"]]
    assert all(set(batch) == {"image", "name"} for batch in batches)
    assert [problem.path.name for problem in loader.skipped] == [f"two\nlines{index}.png" for index in (1, 2, 3)]
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"nala: warning: skipped: two\\nlines{index}.png: the file is empty" for index in (1, 2, 3)]


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


class Spoiled(Dataset):
    """Twenty samples, three of them with a bad file; a sample's value tells which draw it is."""

    bad = frozenset({3, 4, 11})

    def __len__(self):
        return 20

    def __getitem__(self, draw):
        if draw.index in self.bad:
            raise BadFileError(Problem("unreadable", Path(f"{draw.index}.png"), "cannot be read"))
        return {"target": draw.index + 100 * draw.epoch, "name": f"n{draw.index}"}


def epochs(workers, rank=0, world_size=1, batch_size=4):
    """What a process is given in two epochs: values, and the bad files that are told with each batch."""
    order = TrainOrder(20, batch_size, seed=5, rank=rank, world_size=world_size)
    loader = Loader(
        Guarded(Spoiled(), seed=5), batch_size=batch_size, sampler=order, num_workers=workers, collate_fn=collate
    )
    found = []
    for epoch in (0, 1):
        order.set_epoch(epoch)
        found += [(batch["target"].tolist(), batch.get(BAD, [])) for batch in loader]
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_is_replaced_by_another_of_the_split_and_told(workers):
    order = TrainOrder(20, 4, seed=5)
    wanted = []
    for epoch in (0, 1):
        order.set_epoch(epoch)
        wanted += [draw.index + 100 * epoch for draw in order]
    got = [value for values, _ in epochs(workers) for value in values]
    assert len(got) == len(wanted) == 40
    for one, other in zip(wanted, got, strict=True):
        if one % 100 in Spoiled.bad:
            assert other % 100 not in Spoiled.bad and other // 100 == one // 100
        else:
            assert other == one
    told = [entry for _, bad in epochs(workers) for sample in bad for entry in sample]
    assert {entry[1] for entry in told} == {"3.png", "4.png", "11.png"} and len(told) >= 6
    assert all(entry == ("unreadable", entry[1], "cannot be read") for entry in told)


def test_processes_and_workers_replace_alike():
    alone = epochs(0)
    assert epochs(2) == alone
    halves = zip(epochs(0, 0, 2, 2), epochs(0, 1, 2, 2), strict=True)
    assert [(one[0] + other[0], one[1] + other[1]) for one, other in halves] == alone


def test_the_replacement_depends_on_seed_epoch_index_and_attempt():
    draws = {
        replacement(seed, Draw(index, epoch), attempt, 10**9)
        for seed in (0, 1)
        for index in (0, 1)
        for epoch in (0, 1)
        for attempt in (1, 2)
    }
    assert len({draw.index for draw in draws}) == 16
    assert {draw.epoch for draw in draws} == {0, 1} and all(0 <= draw.index < 10**9 for draw in draws)


def test_where_all_is_bad_the_first_is_named():
    items = Spoiled()
    items.bad = frozenset(range(20))
    failure = Guarded(items, seed=0, mend="mend it")[Draw(7, epoch=0)]
    assert failure == Failure("7.png: cannot be read (mend it)") and ATTEMPTS > 1


def test_without_a_seed_nothing_is_replaced():
    assert Guarded(Spoiled(), mend="mend it")[3] == Failure("3.png: cannot be read (mend it)")
    assert BAD not in Guarded(Spoiled(), seed=0)[5]
