"""NaLa, norm-aware linear attention (arXiv 2506.21137).

Shapes: B batch, H heads, N queries, M keys, D head size, E value size.
"""

from torch import Tensor

from nala_platform.attention.blocks.compiled import compiled_form
from nala_platform.attention.blocks.form import chunked_form
from nala_platform.attention.door import check
from nala_platform.attention.forms import plain, reference
from nala_platform.attention.gradient import obstacle
from nala_platform.attention.native.form import is_at_hand, native_form
from nala_platform.attention.precision import autocast_off
from nala_platform.attention.signature import AlphaRange, Backend, Options, Rope
from nala_platform.attention.tracing import fx_leaf
from nala_platform.attention.triton.form import triton_form
from nala_platform.errors import look_up


def _auto(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    # "triton" joins from the day that it has been measured on a card
    if is_at_hand(query, key, value, options):
        return native_form(query, key, value, options)
    return (chunked_form if obstacle(query, options) is None else plain)(query, key, value, options)


BACKENDS: dict[str, Backend] = {
    "reference": reference,
    "plain": plain,
    "chunked": chunked_form,
    "compiled": compiled_form,
    "native": native_form,
    "triton": triton_form,
    "auto": _auto,
}


@fx_leaf
def nala_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    alpha_range: AlphaRange = (1.5, 4.5),
    alpha_gate: str = "tanh",
    key_power: float = 3.0,
    direction: str = "split",
    rope: Rope | None = None,
    is_causal: bool = False,
    key_padding_mask: Tensor | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor:
    """out_i = (R_i phi_q_i) . mean_j( (R_j phi_k_j) v_j^T ) / ( phi_q_i . mean_j(phi_k_j) + eps ), (B, H, N, E).

    query (B, H, N, D), key (B, H, M, D), value (B, H, M, E); the result has the dtype of value, sums and norms are
    float32 (float64 for float64 input). A zero query, and a query whose keys are all masked, get 0.

    alpha_range: (low, high) of the query exponent, 0 < low < high, each a float or a tensor (H,).
    alpha_gate, direction: the maps phi, as in ``feature_map.query_features``; key_power: p > 0, the keys' exponent.
    rope: (cos, sin), each (N, D): R rotates the features, in the numerator only; needs N = M and an even D.
    is_causal: the means run over j <= i; needs N = M. key_padding_mask: bool (B, M), True = ignored in both means.
    eps: > 0.
    backend: how it is computed; it never changes the result beyond rounding. ``"reference"`` is the quadratic
    definition, ``"plain"`` the linear form in ordinary autograd. Of these autograd keeps query, key and value alone:
    ``"chunked"``, in blocks that stay in a cache; ``"compiled"``, the same through ``torch.compile``, which takes a
    minute at the first call; ``"native"``, kernels in C++ for a CPU, which the machine's compiler builds in some
    seconds at the first call ever, and inside ``torch.compile`` one operator; ``"triton"``, fused kernels for CUDA.
    ``"auto"`` is ``"native"`` on a CPU where there is a compiler, else ``"chunked"``, and ``"plain"`` where that cannot
    run (``gradient.obstacle``): inside ``torch.compile`` (without ``"native"``), ``torch.export``, ``torch.jit.trace``
    and ``torch.onnx.export``, under ``torch.func``, and for a rope that requires a gradient. ``torch.fx`` records the
    call as one node.
    Raises UserError for arguments that do not fit together.
    """
    options = Options(alpha_range, alpha_gate, key_power, direction, rope, is_causal, key_padding_mask, eps)
    check(query, key, value, options)
    compute = look_up(BACKENDS, backend, option="backend")
    with autocast_off(query):
        return compute(query, key, value, options).to(value.dtype)
