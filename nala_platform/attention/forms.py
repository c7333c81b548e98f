"""The backends that map all queries and keys to features first: the definition, and its linear form.

Shapes: B batch, H heads, N queries, M keys, D head size, E value size, F = 2D features.
"""

from functools import partial

from torch import Tensor

from nala_platform.attention.feature_map import key_features, query_features
from nala_platform.attention.masking import cleared
from nala_platform.attention.plain import linear_form
from nala_platform.attention.reference import quadratic_form
from nala_platform.attention.signature import Form, Options


def _through_features(form: Form, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """Map queries and keys to features, then contract them in the given form."""
    key, value = cleared(key, value, options.key_padding_mask)
    phi_q_BHNF = query_features(
        query, alpha_range=options.alpha_range, alpha_gate=options.alpha_gate, direction=options.direction
    )
    phi_k_BHMF = key_features(key, key_power=options.key_power, direction=options.direction)
    return form(
        phi_q_BHNF,
        phi_k_BHMF,
        value,
        rope=options.rope,
        is_causal=options.is_causal,
        key_padding_mask=options.key_padding_mask,
        eps=options.eps,
    )


reference = partial(_through_features, quadratic_form)
plain = partial(_through_features, linear_form)
