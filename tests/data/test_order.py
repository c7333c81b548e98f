"""Order and augmentation seeds are functions of (seed, epoch, index): nothing else may move them."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from nala_platform.data.order import Draw, EvalOrder, TrainOrder, permutation, sample_seed, seeded
from nala_platform.errors import UserError


def indices(order):
    return [draw.index for draw in order]


def test_permutation_is_pinned():
    # written down once: an order must stay the same over releases, or runs cannot be resumed or compared
    assert permutation(8, seed=0, epoch=0).tolist() == [0, 5, 3, 7, 1, 6, 2, 4]
    assert permutation(8, seed=0, epoch=1).tolist() == [4, 6, 5, 1, 0, 7, 3, 2]
    assert permutation(8, seed=1, epoch=0).tolist() == [7, 3, 1, 2, 5, 0, 6, 4]
    assert sample_seed(3, Draw(5, epoch=2)) == 14648056383343632712


def test_scramble_is_splitmix64():
    # first outputs of the published generator for state 0 (as in Vigna's splitmix64.c)
    from nala_platform.data.order import _scramble

    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    assert _scramble(golden) == 0xE220A8397B1DCDAF
    assert _scramble(2 * golden & mask) == 0x6E789E6AA1B965F4
    array = np.array([golden, 2 * golden & mask], dtype=np.uint64)
    assert _scramble(array).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_permutation_holds_each_index_once(size):
    assert sorted(permutation(size, 3, 4).tolist()) == list(range(size))


def test_permutations_of_epochs_and_seeds_are_unrelated():
    first = permutation(2000, 0, 0)
    for other in (permutation(2000, 0, 1), permutation(2000, 1, 0), np.arange(2000)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.1
        assert (first == other).mean() < 0.01


@pytest.mark.parametrize(("size", "batch"), [(64, 4), (63, 4), (17, 2), (9, 1)])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_share_out_the_same_global_batches(size, batch, world):
    one = TrainOrder(size, batch * world, seed=5)
    ranks = [TrainOrder(size, batch, seed=5, rank=rank, world_size=world) for rank in range(world)]
    for epoch in (0, 3):
        for order in (one, *ranks):
            order.set_epoch(epoch)
        whole = indices(one)
        shares = [indices(order) for order in ranks]
        assert {len(share) for share in shares} == {len(ranks[0])} == {len(whole) // world}
        together = []
        for start in range(0, len(shares[0]), batch):
            together += [index for share in shares for index in share[start : start + batch]]
        assert together == whole
        assert len(set(whole)) == len(whole) == size - size % (batch * world)
        assert whole == permutation(size, 5, epoch)[: len(whole)].tolist()


def test_draws_carry_the_epoch():
    order = TrainOrder(6, 2)
    order.set_epoch(7)
    assert {draw.epoch for draw in order} == {7}


def test_epoch_changed_during_iteration_does_not_change_it():
    order = TrainOrder(8, 2)
    running = iter(order)
    first = next(running)
    order.set_epoch(1)
    assert [first, *running] == list(TrainOrder(8, 2))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("consumed", [0, 8, 40, 48])
def test_resume_goes_on_where_the_run_stopped_and_later_epochs_are_whole(world, consumed):
    def orders():
        return [TrainOrder(50, 8 // world, seed=2, rank=rank, world_size=world) for rank in range(world)]

    for straight, resumed in zip(orders(), orders(), strict=True):
        straight.set_epoch(3)
        resumed.resume(epoch=3, consumed=consumed)
        assert indices(resumed) == indices(straight)[consumed // world :]
        for order in (straight, resumed):
            order.set_epoch(4)
        assert indices(resumed) == indices(straight)
        assert len(resumed) == 48 // world


def test_resume_with_other_world_size_keeps_the_global_order():
    straight = TrainOrder(64, 8, seed=9)
    straight.set_epoch(1)
    two = [TrainOrder(64, 4, seed=9, rank=rank, world_size=2) for rank in (0, 1)]
    for order in two:
        order.resume(epoch=1, consumed=24)
    assert sorted(indices(two[0]) + indices(two[1])) == sorted(indices(straight)[24:])
    assert indices(two[0])[:4] + indices(two[1])[:4] == indices(straight)[24:32]


@pytest.mark.parametrize(("size", "batch"), [(64, 4), (63, 4), (17, 2), (9, 1), (3, 4), (1, 2)])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_kept_rest_covers_every_sample(size, batch, world):
    ranks = [TrainOrder(size, batch, seed=5, rank=rank, world_size=world, rest="kept") for rank in range(world)]
    for epoch in (0, 3):
        for order in ranks:
            order.set_epoch(epoch)
        shares = [indices(order) for order in ranks]
        assert {len(share) for share in shares} == {len(ranks[0])}
        steps = [[index for share in shares for index in share[i : i + batch]] for i in range(0, len(shares[0]), batch)]
        assert len(steps) == -(-size // (batch * world))
        drawn = [index for step in steps for index in step]
        assert drawn[:size] == permutation(size, 5, epoch).tolist()
        assert 0 <= len(drawn) - size < world
        assert set(drawn[size:]) <= set(drawn[:world])


@pytest.mark.parametrize("world", [1, 2])
def test_resume_before_and_behind_a_kept_rest(world):
    for consumed in (0, 40, 48, 56):
        straight, resumed = (TrainOrder(51, 8 // world, seed=2, world_size=world, rest="kept") for _ in range(2))
        straight.set_epoch(3)
        resumed.resume(epoch=3, consumed=consumed)
        assert indices(resumed) == indices(straight)[consumed // world :]
        resumed.set_epoch(4)
        assert len(indices(resumed)) == len(resumed) == -(-51 // world)


def test_no_samples_are_refused():
    with pytest.raises(UserError, match="no samples"):
        TrainOrder(0, 4, rest="kept")


def test_resume_refuses_a_position_inside_a_global_batch():
    with pytest.raises(UserError, match="behind sample 12 of 64 with a global batch of 8"):
        TrainOrder(64, 8).resume(epoch=0, consumed=12)


def test_too_few_samples_name_the_numbers_and_the_mend():
    with pytest.raises(UserError, match=r"7 samples.*global batch of 8.*--data.batch_size to 3"):
        TrainOrder(7, 4, world_size=2)


@pytest.mark.parametrize(("size", "world", "counts"), [(5, 2, [3, 2]), (1, 2, [1, 0]), (6, 3, [2, 2, 2]), (5, 1, [5])])
def test_eval_order_gives_each_sample_once(size, world, counts):
    orders = [EvalOrder(size, rank=rank, world_size=world, all_share=False) for rank in range(world)]
    assert [len(list(order)) for order in orders] == [len(order) for order in orders] == counts
    assert sorted(index for order in orders for index in indices(order)) == list(range(size))


def test_no_process_is_left_without_a_sample():
    assert [indices(EvalOrder(2, rank=rank, world_size=3)) for rank in range(3)] == [[0, 1]] * 3
    assert [indices(EvalOrder(5, rank=rank, world_size=2)) for rank in range(2)] == [[0, 2, 4], [1, 3]]


class Echo(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, draw):
        return torch.tensor([draw.index, draw.epoch, sample_seed(1, draw) % 2**31])


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_workers_change_nothing(workers):
    order = TrainOrder(40, 4, seed=1)
    loader = DataLoader(Echo(), 4, sampler=order, num_workers=workers, persistent_workers=workers > 0)
    for epoch in (0, 1):
        order.set_epoch(epoch)
        rows = torch.cat(list(loader)).tolist()
        expected = [Draw(index, epoch) for index in permutation(40, 1, epoch).tolist()]
        assert rows == [[draw.index, draw.epoch, sample_seed(1, draw) % 2**31] for draw in expected]


def test_sample_seeds_differ():
    seeds = {sample_seed(seed, Draw(i, epoch)) for seed in range(5) for epoch in range(20) for i in range(100)}
    assert len(seeds) == 5 * 20 * 100
    assert sample_seed(0, Draw(1, epoch=2)) != sample_seed(0, Draw(2, epoch=1))


def test_seeded_repeats_and_restores():
    def numbers():
        return random.random(), np.random.rand(), torch.rand(()).item()

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = numbers()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with seeded(2**64 - 1):
        inside = numbers()
    assert numbers() == before
    with seeded(2**64 - 1):
        assert numbers() == inside
    assert len({*before, *inside}) == 6


def test_seeded_restores_after_an_error():
    state = random.getstate()
    with pytest.raises(KeyError), seeded(0):
        raise KeyError
    assert random.getstate() == state


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("consumed", [0, 8, 32])
def test_copies_stand_side_by_side_and_resume_at_any_global_batch(world, consumed):
    def draws(start):
        orders = [
            TrainOrder(41, 8 // world, seed=2, rank=rank, world_size=world, copies=3, rest="left out")
            for rank in range(world)
        ]
        for order in orders:
            order.resume(epoch=1, consumed=start)
        size = 8 // world
        shares = [list(order) for order in orders]
        return [draw for at in range(0, len(shares[0]), size) for share in shares for draw in share[at : at + size]]

    expected = [Draw(index, 1, copy) for index in permutation(41, 2, 1).tolist() for copy in range(3)][:40]
    assert draws(0) == expected
    assert draws(consumed) == expected[consumed:]


def test_each_copy_has_its_own_augmentation():
    seeds = {sample_seed(0, Draw(index, epoch, copy)) for index in range(50) for epoch in range(4) for copy in range(3)}
    assert len(seeds) == 600
    assert sample_seed(3, Draw(5, epoch=2, copy=0)) == sample_seed(3, Draw(5, epoch=2))
