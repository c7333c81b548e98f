"""Memory of a piece of work, in a process of its own."""

import os
import warnings
from functools import partial

import pytest
import torch

from nala_platform.bench.peak import Failed, free_bytes, resident_growth

MB = 1_000_000


def allocate(megabytes: int, kept: int = 0):
    """Work that fills so much and lets it go, on inputs of ``kept`` megabytes that are there before."""
    inputs = torch.ones(kept * MB // 4)

    def work() -> torch.Tensor:
        return torch.ones(megabytes * MB // 4).sum() + inputs[:1].sum()

    return work


def fail(how: str):
    def work():
        if how == "dies":
            os._exit(9)
        raise ValueError("first line\nsecond line")

    return work


@pytest.mark.parametrize("kept", [0, 300])
def test_a_known_allocation_is_found_again(kept: int):
    peak = resident_growth(partial(allocate, 200, kept), partial(allocate, 1))
    assert peak.grown == pytest.approx(200 * MB, rel=0.05)


def test_what_is_freed_before_it_does_not_hide_it():
    """The small run leaves 300 MB of small blocks to the C library, which must not count as free for the work."""

    assert resident_growth(partial(allocate, 50), partial(allocate, 300)).grown == pytest.approx(50 * MB, rel=0.05)


def complain():
    warnings.warn("of a library to a library", FutureWarning, stacklevel=1)
    return lambda: None


def test_its_process_is_as_quiet_as_the_command(capfd: pytest.CaptureFixture[str]):
    resident_growth(complain)
    assert "of a library" not in capfd.readouterr().err


def test_a_process_that_fails_says_why():
    with pytest.raises(Failed, match=r"^ValueError: first line$"):
        resident_growth(partial(fail, "raises"), partial(allocate, 1))
    with pytest.raises(Failed, match="code 9: not enough memory, most likely"):
        resident_growth(partial(fail, "dies"), partial(allocate, 1))


def test_free_memory_is_less_than_the_machine_has():
    assert 50 * MB < free_bytes("cpu") < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
