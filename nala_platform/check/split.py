"""What is known of a split after a look at each sample of it."""

import os
from array import array
from collections import Counter
from collections.abc import Iterator
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np

from nala_platform.check.walk import Facts

_NONE = -(2**63)  # no label


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

    It keeps some 40 bytes of each picture beside its name, and no object: there may be many millions.
    """

    def __init__(self) -> None:
        self._digests, self._names = bytearray(), bytearray()
        self._ends, self._labels, self._splits = array("Q", [0]), array("q"), array("B")
        self._split_names: list[str] = []
        self._copies: list[Copy] | None = None

    def add(self, split: str, facts: Facts) -> None:
        """Keep a sample to compare it with the others."""
        if not facts.digest or facts.problem is not None:
            return
        self._copies = None
        if split not in self._split_names:
            self._split_names.append(split)
        self._digests += facts.digest
        self._names += os.fsencode(str(facts.files[0].path) if facts.files else facts.name)
        self._ends.append(len(self._names))
        self._labels.append(_NONE if facts.label is None else facts.label)
        self._splits.append(self._split_names.index(split))

    @property
    def leaks(self) -> list[Copy]:
        """Copies in different splits."""
        return [copy for copy in self._all() if copy.splits[0] != copy.splits[1]]

    @property
    def contradictions(self) -> list[Copy]:
        """Copies of different classes."""
        return [copy for copy in self._all() if copy.labels[0] != copy.labels[1]]

    def _all(self) -> list[Copy]:
        if self._copies is None:  # sorting millions of digests is for once
            self._copies = list(self._found())
        return self._copies

    def _found(self) -> Iterator[Copy]:
        """Each picture that was there before, with the first one that is the same, in order."""
        digest_N2 = np.frombuffer(bytes(self._digests), np.uint64).reshape(-1, 2)
        order_N = np.lexsort(digest_N2.T)  # stable: of equal ones the first comes first
        is_first_N = np.ones(len(order_N), dtype=bool)
        is_first_N[1:] = (digest_N2[order_N[1:]] != digest_N2[order_N[:-1]]).any(axis=1)
        begin_N = np.maximum.accumulate(np.where(is_first_N, np.arange(len(order_N)), 0))
        again_N, before_N = order_N[~is_first_N], order_N[begin_N[~is_first_N]]
        for second, first in sorted(zip(again_N.tolist(), before_N.tolist(), strict=True)):
            splits = [self._split_names[self._splits[index]] for index in (first, second)]
            labels = [None if self._labels[index] == _NONE else self._labels[index] for index in (first, second)]
            yield Copy(self._name(first), self._name(second), (splits[0], splits[1]), (labels[0], labels[1]))

    def _name(self, index: int) -> str:
        return os.fsdecode(bytes(self._names[self._ends[index] : self._ends[index + 1]]))
