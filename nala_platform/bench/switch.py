"""Another backend for the layers of a network, and softmax with its scores in memory, for the while of a bench.

A layer calls its attention with ``backend="auto"``; networks take no backend, since none changes a result.
"""

import contextlib
from collections.abc import Iterator

from torch.nn.attention import SDPBackend, sdpa_kernel

from nala_platform.attention.nala import BACKENDS
from nala_platform.bench.contestants import MATERIALISED


@contextlib.contextmanager
def computed_as(contestant: str) -> Iterator[None]:
    """While this lasts, ``auto`` of NaLa is the backend behind the slash in ``nala/<backend>``.

    ``softmax-materialised``: softmax takes torch's kernel that writes the N x N scores. Else nothing changes.
    """
    backend = contestant.partition("/")[2]
    if contestant == MATERIALISED:
        with sdpa_kernel(SDPBackend.MATH):
            yield
        return
    before = BACKENDS["auto"]
    BACKENDS["auto"] = BACKENDS[backend or "auto"]
    try:
        yield
    finally:
        BACKENDS["auto"] = before
