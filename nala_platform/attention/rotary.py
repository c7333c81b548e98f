"""The rotation R of rotary position embedding.

Shapes: N positions, D head size, F features (a multiple of D).
"""

import torch
from torch import Tensor

from nala_platform.attention.signature import Rope


def rotate(x_NF: Tensor, rope: Rope | None) -> Tensor:
    """Rotate each pair (x0, x1), (x2, x3), ... of position n by the angle in row n of the tables.

    (x0, x1) -> (x0 cos - x1 sin, x1 cos + x0 sin). ``x_NF`` is (..., N, F) with F a multiple of D; each stretch of D
    features is rotated alike. ``rope=None`` is the identity. The tables are taken in the dtype of ``x_NF``; axes
    before (N, D) broadcast against those before (N, F).
    """
    if rope is None:
        return x_NF
    cos_ND, sin_ND = (table.to(x_NF.dtype) for table in rope)
    x_NSD = x_NF.unflatten(-1, (-1, cos_ND.shape[-1]))
    # The sign goes into the small table: negating and interleaving the features themselves costs a training step of a
    # language model 10 % of its time.
    signed_ND = torch.stack((-sin_ND[..., 0::2], sin_ND[..., 1::2]), dim=-1).flatten(-2)
    swapped_NSD = x_NSD.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(x_NSD * cos_ND.unsqueeze(-2), swapped_NSD, signed_ND.unsqueeze(-2)).flatten(-2)
