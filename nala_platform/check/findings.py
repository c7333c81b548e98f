"""All that a look at every sample has found."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nala_platform.check.documents import Shared
from nala_platform.check.split import Copies, Copy, Split
from nala_platform.check.walk import Facts
from nala_platform.data.base import DataModule
from nala_platform.data.problems import Problem
from nala_platform.errors import UserError


class Findings:
    """Problems, which have to be mended, and warnings, which may be meant so.

    Args:
        data: the module that is looked at; None where it cannot even be made.

    Attributes:
        problems: each once, with its split, which is empty where the listing of the files found it.
        splits: by name, in the order in which they were looked at.
        shared: which texts have documents of another split.
        alike: the name of a split that is another one once more, and of that one.
    """

    def __init__(self, data: DataModule | None) -> None:
        self.data, self.copies = data, Copies()
        self.crop: tuple[int, int] | None = getattr(data, "crop", None)
        self.class_names: tuple[str, ...] = getattr(data, "class_names", ())
        self.problems: dict[Problem, str] = {}
        self.splits: dict[str, Split] = {}
        self.shared: list[Shared] = []
        self.alike: dict[str, str] = {}

    def note(self, split: str, problems: Iterable[Problem]) -> None:
        """Keep problems, each once."""
        for problem in problems:
            self.problems.setdefault(problem, split)

    def add(self, split: str, facts: Facts) -> Facts:
        """Take in a sample; what is given back has its problem, if it has one."""
        if facts.problem is None and (problem := self._outside(facts)) is not None:
            facts = facts._replace(problem=problem)
        self.splits.setdefault(split, Split(split)).add(facts)
        self.copies.add(split, facts)
        if facts.problem is not None:
            self.note(split, [facts.problem])
        return facts

    def _outside(self, facts: Facts) -> Problem | None:
        """A label that the model has no place for. Masks are refused where they are read."""
        count = getattr(self.data, "vocab_size" if facts.tokens else "num_classes", None)
        if count is None or len(facts.pixels_V) or not len(facts.label_V):
            return None
        worst = int(facts.label_V[0]) if facts.label_V[0] < 0 else int(facts.label_V[-1])
        if 0 <= worst < count:
            return None
        path = facts.files[0].path if facts.files else Path(facts.name)
        what = "token" if facts.tokens else "label"
        return Problem("wrong label", path, f"{what} {worst} is outside 0..{count - 1}")

    def counts(self) -> dict[str, int]:
        """How many problems there are of each kind, the commonest first."""
        return dict(Counter(problem.kind for problem in self.problems).most_common())

    def counted(self) -> dict[str, dict[str, int]]:
        """What the module itself counts by split: documents, empty ones, bytes, …"""
        with suppress(UserError):  # what hinders it is among the problems
            protocol = self.data.protocol() if self.data is not None else {}
            return {name: value for name, value in protocol.items() if _by_split(value)}
        return {}

    def warnings(self) -> list[str]:
        """What may be meant so, a line each kind."""
        found = [
            _copies(self.copies.leaks, "pictures of one split that stand in another too, to the byte (a leak)"),
            _copies(self.copies.contradictions, "pictures that stand in two classes, to the byte"),
        ]
        found += [
            f"documents of {one.split} that stand in {one.other} too, token for token (a leak): {one.count} of "
            f"{one.documents}"
            for one in self.shared
        ]
        for split in self.splits.values():
            absent = self.absent(split)
            if absent and split.name == "train":
                some = ", ".join(absent[:8]) + (", …" if len(absent) > 8 else "")
                found.append(f"classes that do not occur in train: {len(absent)} of {len(self.class_names)} ({some})")
            extent = split.extent(self.crop)
            if extent and split.name == "train" and (share := extent.get("smaller than the crop", 0)):
                height, width = self.crop or (0, 0)
                found.append(f"pictures of train that are smaller than the crop, {height}x{width}: {share:.1%}")
        return [line for line in found if line]

    def absent(self, split: Split) -> list[str]:
        """The classes that no good sample of a split has."""
        names = enumerate(self.class_names if split.images else ())
        return [name for index, name in names if not split.images[index]]

    def stated(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "data": type(self.data).__name__,
            "splits": {split.name: self._stated(split) for split in self.splits.values()},
            "the same once more": self.alike,
            "as the data counts": self.counted(),
            "counts": self.counts(),
            "problems": [
                {"kind": problem.kind, "split": split, "path": str(problem.path), "text": problem.text}
                for problem, split in self.problems.items()
            ],
            "warnings": self.warnings(),
            "shared documents": [one._asdict() for one in self.shared],
            "leaks": [[copy.first, copy.second] for copy in self.copies.leaks],
            "contradictions": [[copy.first, copy.second] for copy in self.copies.contradictions],
        }

    def _stated(self, split: Split) -> dict[str, Any]:
        found: dict[str, Any] = {"samples": split.samples, "bad": split.bad}
        if split.tokens:
            found["tokens"] = split.tokens
        if split.labels is not None:
            found["label range"] = list(split.labels)
        if split.images:
            found["images of each class"] = self._named(split.images)
            found["absent classes"] = self.absent(split)
        if split.pixels:
            found["pixels of each class"] = self._named(split.pixels)
        if extent := split.extent(self.crop):
            found["height x width"] = extent
        return found

    def _named(self, counts: Counter[int]) -> dict[str, int]:
        names = self.class_names
        ignored = getattr(self.data, "ignore_index", None)
        listed = {name: counts[index] for index, name in enumerate(names)}
        others = {index: count for index, count in sorted(counts.items()) if not 0 <= index < len(names)}
        return listed | {"ignored" if index == ignored else str(index): count for index, count in others.items()}


def _by_split(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and 0 < len(value)
        and {*value} <= {"train", "val", "test"}
        and all(type(n) is int for n in value.values())
    )


def _copies(copies: list[Copy], what: str) -> str:
    if not copies:
        return ""
    few = ", ".join(f"{copy.second} is {copy.first}" for copy in copies[:2])
    return f"{what}: {len(copies)} ({few}{', …' if len(copies) > 2 else ''})"
