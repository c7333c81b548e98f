"""Data order without state: what is drawn, and how it is augmented, are functions of (seed, epoch, index) alone.

Nothing here depends on the number of loader workers, on how many processes share a global batch, on where a run was
stopped, or on a random generator's history. Hashing is splitmix64 (Steele, Lea, Flood 2014) in integer arithmetic, so
an order stays the same for ever, whatever the versions of numpy or torch.

Shapes: N samples.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch.utils.data import Sampler

from nala_platform.errors import UserError

_MASK = 2**64 - 1
_ORDER, _AUGMENT = 1, 2  # two independent streams of one seed

Words = TypeVar("Words", int, np.ndarray)
Rest = Literal["left out", "kept"]


class Draw(NamedTuple):
    """One sample to be read: which, in which epoch, and for which time in it (its augmentation depends on all)."""

    index: int
    epoch: int
    copy: int = 0


def permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch: the indices ``0..size-1`` as int64 ``(N,)``, sorted by their hashes.

    Examples:
        >>> permutation(6, seed=0, epoch=0).tolist() == permutation(6, seed=0, epoch=0).tolist()
        True
        >>> sorted(permutation(6, seed=0, epoch=1).tolist())
        [0, 1, 2, 3, 4, 5]
    """
    stream = _hash(seed, _ORDER, epoch)
    return np.argsort(_scramble((np.arange(size, dtype=np.uint64) + stream) & _MASK), kind="stable")


def sample_seed(seed: int, draw: Draw) -> int:
    """The seed, in ``0..2**64-1``, of the augmentation of one draw."""
    # without a word for the first copy, so that the orders of all runs without copies stay what they were
    return _hash(seed, _AUGMENT, draw.epoch, draw.index, *([draw.copy] if draw.copy else []))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, the global generators of python, numpy and torch (CPU) start from ``seed``; after it, they are as before.

    For transforms that draw from the global generators. A GPU's generator is neither read nor written.
    """
    python, legacy, tensor = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # not torch.manual_seed: that seeds the GPUs too, and nothing would put them back
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.default_generator.set_state(tensor)


class TrainOrder(Sampler[Draw]):
    """This process's draws of an epoch, shuffled.

    Global batch k is the slice ``k*G .. (k+1)*G-1`` of `permutation`, with ``G = batch_size * world_size``; process r
    takes the r-th ``batch_size`` of it. So two processes with batches of B see the same global batches as one with 2 B.
    The ``N % G`` samples behind the last whole global batch are left out of the epoch (others in each epoch), or kept
    as a shorter last batch. Processes must have equal shares of it, or some would wait for ever for the others: where
    it does not go up, the epoch's first samples fill it, fewer than there are processes.

    With ``copies`` (repeated augmentation, arXiv 1902.05509), position p of the epoch is copy ``p % copies`` of sample
    ``p // copies`` of `permutation`: an epoch has as many draws as ever, of the first ``1 / copies`` of its samples,
    others in each epoch. Copies of a sample stand side by side, so nearly all are in one global batch. Positions are
    what batches, shares and resuming count, so these are the same with and without copies.

    With ``repeats``, every epoch draws what the first one does, augmentation included.

    Lightning calls `set_epoch` before each epoch. ``len`` counts the draws of a whole epoch, wherever it starts.

    Args:
        size: N.
        batch_size: of one process.
        seed: of the order.
        rank: of this process, ``0..world_size-1``.
        world_size: number of processes.
        rest: what becomes of the samples behind the last whole global batch. Kept, they weigh more than others, and a
            BatchNorm sees fewer at once.
        copies: draws of each sample that the epoch takes, one after the other.
        repeats: all epochs are the first one.

    Raises:
        UserError: no samples, or fewer than ``G`` of which none would be kept.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        rest: Rest = "left out",
        copies: int = 1,
        repeats: bool = False,
    ) -> None:
        self.global_batch = batch_size * world_size
        if rest == "kept" and size == 0:
            raise UserError("the training split has no samples")
        if rest == "left out" and size < self.global_batch:
            raise UserError(
                f"the training split has {size} samples, fewer than one global batch of {self.global_batch} "
                f"(batch_size {batch_size} on {world_size} processes): lower --data.batch_size to {size // world_size}"
            )
        self.size, self.batch_size, self.seed, self.rank, self.world_size = size, batch_size, seed, rank, world_size
        # of each process, in its last batch
        self._rest = -(-(size % self.global_batch) // world_size) if rest == "kept" else 0
        self.copies, self.repeats = copies, repeats
        self.epoch = 0
        self._resumed = Draw(0, epoch=0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration gives."""
        self.epoch = epoch

    def resume(self, epoch: int, consumed: int) -> None:
        """Let the iteration of ``epoch`` begin behind its first ``consumed`` samples; other epochs stay whole.

        Args:
            epoch: the interrupted epoch; it becomes the current one.
            consumed: how many samples all processes together had trained on in it.

        Raises:
            UserError: the position does not lie between two global batches of this run.
        """
        # behind a shorter last batch, which counts as a whole one, nothing is left
        if not 0 <= consumed < self.size + self.global_batch or consumed % self.global_batch:
            raise UserError(
                f"cannot go on behind sample {consumed} of {self.size} with a global batch of {self.global_batch}: use "
                "the batch_size x processes that the run was started with"
            )
        self.epoch = epoch
        self._resumed = Draw(consumed, epoch)

    def __iter__(self) -> Iterator[Draw]:
        # tuples of plain integers: indices travel to loader workers, and an epoch may not change on the way
        epoch = 0 if self.repeats else self.epoch
        order_N = permutation(self.size, self.seed, epoch)
        start = self._resumed.index if self._resumed.epoch == self.epoch else 0
        whole = self.size // self.global_batch * self.global_batch
        for batch in range(start, whole + self._rest, self.global_batch):
            share = self.batch_size if batch < whole else self._rest
            first = batch + self.rank * share
            for place in range(first, first + share):
                sample, copy = divmod(place % self.size, self.copies)
                yield Draw(int(order_N[sample]), epoch, copy)

    def __len__(self) -> int:
        return self.size // self.global_batch * self.batch_size + self._rest


class EvalOrder(Sampler[Draw]):
    """This process's part of a split, in order: indices ``rank, rank + world_size, …``; nothing is padded.

    Five samples on two processes are three and two, so a sum over processes counts each sample once.

    Args:
        size: N.
        rank: of this process.
        world_size: number of processes.
        all_share: of fewer samples than processes, each takes all. A sum over processes then counts each sample
            ``world_size`` times, so means are what they were; with no sample, a process would have nothing to add
            where the others wait for it.
    """

    def __init__(self, size: int, *, rank: int = 0, world_size: int = 1, all_share: bool = True) -> None:
        self.mine = range(size) if all_share and size < world_size else range(rank, size, world_size)

    def __iter__(self) -> Iterator[Draw]:
        return (Draw(index, epoch=0) for index in self.mine)

    def __len__(self) -> int:
        return len(self.mine)


def _hash(*words: int) -> int:
    state = 0
    for word in words:
        state = _scramble((state + word + 0x9E3779B97F4A7C15) & _MASK)
    return state


def _scramble(word: Words) -> Words:
    """splitmix64's bijective finaliser; on arrays of uint64 the products wrap by themselves."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
