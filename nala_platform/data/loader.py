"""Loading with workers, so that a user's mistake found in a worker is still one line.

torch wraps an exception of a worker into a message with two tracebacks. Here the worker sends the line itself, as a
value, and the loader raises it in the main process.

Shapes: C channels, H W pixels.
"""

import signal
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset, default_collate

from nala_platform.data.order import Draw, sample_seed
from nala_platform.data.problems import BadFileError, Problem
from nala_platform.errors import UserError, from_os_error

Sample = dict[str, Any]
PATIENCE = 30  # seconds
ATTEMPTS = 16  # at another sample than a bad one
SKIPPED = "skipped"  # of a batch of a prediction, before the loader gives it out
BAD = "bad"  # of a training batch that has replaced samples: for each, what was wrong: strings (kind, path, text)


class Failure(NamedTuple):
    """Stands for a sample that cannot be read."""

    message: str


class Skipped(NamedTuple):
    """Stands for a sample of a prediction whose file is bad."""

    problem: Problem


class Guarded(Dataset[Sample | Failure | Skipped]):
    """A data set whose `UserError` comes back as a `Failure`.

    Args:
        items: read by `Draw`; it has a length.
        seed: where a sample with a bad file is replaced: of the choice of another. ``None`` replaces none.
        mend: what a person can do about a bad file; the message ends with it.
        skips: whether a sample with a bad file comes back as `Skipped` instead.
    """

    def __init__(self, items: Dataset[Sample], *, seed: int | None = None, mend: str = "", skips: bool = False) -> None:
        self.items, self.seed, self.mend, self.skips = items, seed, mend, skips

    def __len__(self) -> int:
        return len(self.items)  # type: ignore[arg-type]

    def __getitem__(self, draw: Draw | int) -> Sample | Failure | Skipped:
        # plain integers come from a sampler that is not ours
        draw = draw if isinstance(draw, Draw) else Draw(draw, epoch=0)
        bad: list[Problem] = []
        for attempt in range(1 if self.seed is None else ATTEMPTS):
            try:
                sample = self.items[replacement(self.seed or 0, draw, attempt, len(self)) if attempt else draw]
            except BadFileError as error:
                bad.append(error.problem)
            except UserError as error:
                return Failure(str(error))
            except OSError as error:  # a worker's would come to the main process without its path
                if (ours := from_os_error(error)) is None:
                    raise
                return Failure(str(ours))
            else:
                return {**sample, BAD: bad} if bad else sample
        if self.skips:
            return Skipped(bad[0])
        return Failure(f"{bad[0]}{f' ({self.mend})' if self.mend else ''}")


def replacement(seed: int, draw: Draw, attempt: int, size: int) -> Draw:
    """What is drawn instead of a bad sample, at the ``attempt``-th time, from 1 on: a function of the arguments alone.

    So processes, loader workers and a resumed run all take the same one.
    """
    return draw._replace(index=sample_seed(sample_seed(seed, draw), Draw(attempt, draw.epoch)) % size)


def collate(samples: list[Sample | Failure | Skipped]) -> Sample | Failure:
    """Stack samples to a batch; strings become a list. The first failure takes the place of the batch.

    Of skipped samples the batch tells under `SKIPPED`, a list of problems; it has nothing else where all are skipped.
    """
    good: list[Sample] = []
    bad: list[list[tuple[str, ...]]] = []
    skipped: list[Problem] = []
    for sample in samples:
        if isinstance(sample, Failure):
            return sample
        if isinstance(sample, Skipped):
            skipped.append(sample.problem)
            continue
        if BAD in sample:
            bad.append([tuple(map(str, problem)) for problem in sample[BAD]])
        good.append({key: value for key, value in sample.items() if key != BAD})
    sizes = {tuple(sample["image"].shape[-2:]): sample["name"] for sample in good if "image" in sample}
    if len(sizes) > 1:
        (size, name), (other_size, other_name) = list(sizes.items())[:2]
        return Failure(
            f"{name} is {_text(size)} and {other_name} {_text(other_size)} (height x width): images of different sizes "
            "do not fit in one batch: set --data.eval_batch_size 1"
        )
    batch = default_collate(good) if good else {}
    return {**batch, **({BAD: bad} if bad else {}), **({SKIPPED: skipped} if skipped else {})}


def outlive_signals(worker: int) -> None:
    """In a loader's worker: a signal to the whole group, such as Ctrl-C, is the main process's to heed.

    That one finishes its step and saves, for which it may need one more batch; a worker that died at once would take it
    down. After `PATIENCE` seconds a worker leaves all the same, and at once when the main process has gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(PATIENCE))


class Loader(DataLoader[Any]):
    """A `DataLoader` over a `Guarded` data set that raises what failed, as the `UserError` that it was.

    Attributes:
        skipped: the problems of the samples that were skipped; each is named on stderr too.
    """

    skipped: list[Problem]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.skipped = []

    def __iter__(self) -> Iterator[Sample]:  # type: ignore[override]
        batches = super().__iter__()
        for batch in batches:
            if isinstance(batch, Failure):
                # Left to the garbage collector, which finalises the queues first, workers would be waited for in vain.
                if self.num_workers:
                    batches._shutdown_workers()  # type: ignore[attr-defined]
                    self._iterator = None
                raise UserError(batch.message)
            for problem in batch.pop(SKIPPED, ()):
                self.skipped.append(problem)
                print(f"nala: warning: skipped: {problem}", file=sys.stderr, flush=True)
            if batch:
                yield batch


def _text(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))
