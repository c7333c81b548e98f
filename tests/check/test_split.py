"""Copies are found as by a dictionary, in less memory."""

import hashlib
import random
import tracemalloc
from pathlib import Path

import numpy as np

from nala_platform.check.split import Copies, Copy
from nala_platform.check.walk import Facts
from nala_platform.data.images.image_file import Opened
from nala_platform.data.problems import Problem


def facts(name: str, content: int, label: int | None) -> Facts:
    digest = hashlib.blake2b(str(content).encode(), digest_size=16).digest()
    label_V = np.zeros(0, np.int64) if label is None else np.array([label])
    return Facts(name, [Opened(Path(name), digest)], None, (9, 9), digest, label_V)


def test_copies_are_those_that_a_dictionary_finds():
    draw, copies = random.Random(0), Copies()
    first: dict[int, tuple[str, str, int | None]] = {}
    wanted = []
    for index in range(3000):
        split = "train" if index < 2000 else "val"
        name, content, label = f"{split}/{index}\udce9.png", draw.randrange(2500), draw.choice([None, 0, 1])
        copies.add(split, facts(name, content, label))
        there, other, before = first.setdefault(content, (split, name, label))
        if other != name:
            wanted.append(Copy(other, name, (there, split), (before, label)))
    assert len(wanted) > 500
    assert copies.leaks == [copy for copy in wanted if copy.splits[0] != copy.splits[1]]
    assert copies.contradictions == [copy for copy in wanted if copy.labels[0] != copy.labels[1]]


def test_what_has_no_digest_or_a_problem_is_no_copy():
    copies = Copies()
    assert copies.leaks == [] == copies.contradictions
    for split in ("train", "val"):
        copies.add(split, facts("a", 1, 0)._replace(digest=b""))
        copies.add(split, facts("b", 1, 0)._replace(problem=Problem("unreadable", Path("b"), "is cut off")))
    assert copies.leaks == []


def test_a_picture_takes_little_memory():
    """A dictionary of tuples takes 350 bytes of each; here, beside the name of 20, there are 33."""
    copies, count = Copies(), 20000
    tracemalloc.start()
    for index in range(count):
        copies.add("train", facts(f"folder/{index:08d}.jpg", index, index % 10))
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size / count < 90
