"""What is known of a split after a look at each sample of it."""

from collections import Counter
from statistics import median_low
from typing import Any, NamedTuple

from nala_platform.check.walk import Facts


class Split:
    """Counts over one split.

    Args:
        name: ``train``, ``val`` or ``test``.

    Attributes:
        samples: how many there are, bad ones too.
        bad: how many of them cannot be used.
        sizes: how many pictures there are of each height and width.
        tokens: that are predicted.
        labels: the least and the greatest; None where there are none.
        images: of each class, how many samples it is in.
        pixels: of each class, how many pixels of masks.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.samples = self.bad = self.tokens = 0
        self.sizes: Counter[tuple[int, int]] = Counter()
        self.labels: tuple[int, int] | None = None
        self.images: Counter[int] = Counter()
        self.pixels: Counter[int] = Counter()

    def add(self, facts: Facts) -> None:
        """Count a sample."""
        self.samples += 1
        if facts.problem is not None:
            self.bad += 1
            return
        self.tokens += facts.tokens
        if facts.size != (0, 0):
            self.sizes[facts.size] += 1
        labels = facts.label_V.tolist()
        if labels:
            least, most = self.labels or (labels[0], labels[-1])
            self.labels = (min(least, labels[0]), max(most, labels[-1]))
        if not facts.tokens:
            self.images.update(labels)
            # not a dict's update: that would replace the counts
            self.pixels.update(dict(zip(labels, facts.pixels_V.tolist(), strict=False)))

    def extent(self, crop: tuple[int, int] | None) -> dict[str, Any] | None:
        """Least, middle and greatest height and width, how many sizes, and the share of pictures below the crop."""
        if not self.sizes:
            return None
        edges = [sorted(size[axis] for size in self.sizes.elements()) for axis in (0, 1)]
        found: dict[str, Any] = {
            "min": [edge[0] for edge in edges],
            "median": [median_low(edge) for edge in edges],
            "max": [edge[-1] for edge in edges],
            "distinct": len(self.sizes),
        }
        if crop is not None:
            small = sum(count for size, count in self.sizes.items() if size[0] < crop[0] or size[1] < crop[1])
            found["smaller than the crop"] = small / self.sizes.total()
        return found


class Copy(NamedTuple):
    """Two files that are the same to the byte, with their splits and, where they have one, their classes."""

    first: str
    second: str
    splits: tuple[str, str]
    labels: tuple[int | None, int | None]


class Copies:
    """Finds pictures that stand in two splits, or in two classes.

    Attributes:
        leaks: copies in different splits.
        contradictions: copies of different classes.
    """

    def __init__(self) -> None:
        self._first: dict[bytes, tuple[str, str, int | None]] = {}
        self.leaks: list[Copy] = []
        self.contradictions: list[Copy] = []

    def add(self, split: str, facts: Facts) -> None:
        """Compare a sample with those before it."""
        if not facts.digest or facts.problem is not None:
            return
        name = str(facts.files[0].path) if facts.files else facts.name
        there, other, label = self._first.setdefault(facts.digest, (split, name, facts.label))
        copy = Copy(other, name, (there, split), (label, facts.label))
        if there != split:
            self.leaks.append(copy)
        if label != facts.label:
            self.contradictions.append(copy)
