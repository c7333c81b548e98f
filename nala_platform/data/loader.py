"""Loading with workers, so that a user's mistake found in a worker is still one line.

torch wraps an exception of a worker into a message with two tracebacks. Here the worker sends the line itself, as a
value, and the loader raises it in the main process.

Shapes: C channels, H W pixels.
"""

import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset, default_collate

from nala_platform.data.order import Draw
from nala_platform.errors import UserError

Sample = dict[str, Any]
PATIENCE = 30  # seconds


class Failure(NamedTuple):
    """Stands for a sample that cannot be read."""

    message: str


class Guarded(Dataset[Sample | Failure]):
    """A data set whose `UserError` comes back as a `Failure`.

    Args:
        items: read by `Draw`; it has a length.
    """

    def __init__(self, items: Dataset[Sample]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)  # type: ignore[arg-type]

    def __getitem__(self, draw: Draw | int) -> Sample | Failure:
        # plain integers come from the sequential sampler that Lightning puts in place for overfit_batches
        try:
            return self.items[draw if isinstance(draw, Draw) else Draw(draw, epoch=0)]
        except UserError as error:
            return Failure(str(error))


def collate(samples: list[Sample | Failure]) -> Sample | Failure:
    """Stack samples to a batch; strings become a list. The first failure takes the place of the batch."""
    good: list[Sample] = []
    for sample in samples:
        if isinstance(sample, Failure):
            return sample
        good.append(sample)
    sizes = {tuple(sample["image"].shape[-2:]): sample["name"] for sample in good if "image" in sample}
    if len(sizes) > 1:
        (size, name), (other_size, other_name) = list(sizes.items())[:2]
        return Failure(
            f"{name} is {_text(size)} and {other_name} {_text(other_size)} (height x width): images of different sizes "
            "do not fit in one batch: set --data.eval_batch_size 1"
        )
    return default_collate(good)


def outlive_signals(worker: int) -> None:
    """In a loader's worker: a signal to the whole group, such as Ctrl-C, is the main process's to heed.

    That one finishes its step and saves, for which it may need one more batch; a worker that died at once would take it
    down. After `PATIENCE` seconds a worker leaves all the same, and at once when the main process has gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(PATIENCE))


class Loader(DataLoader[Any]):
    """A `DataLoader` over a `Guarded` data set that raises what failed, as the `UserError` that it was."""

    def __iter__(self) -> Iterator[Sample]:  # type: ignore[override]
        batches = super().__iter__()
        for batch in batches:
            if isinstance(batch, Failure):
                # Left to the garbage collector, which finalises the queues first, workers would be waited for in vain.
                if self.num_workers:
                    batches._shutdown_workers()  # type: ignore[attr-defined]
                    self._iterator = None
                raise UserError(batch.message)
            yield batch


def _text(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))
