"""The backends with a gradient of their own on a CPU, "chunked" and "native", against NaLa's quadratic definition.

Values, gradients, what is kept for them, and where they cannot run.
"""

import itertools

import pytest
import torch

from nala_platform.attention import nala_attention
from nala_platform.attention.blocks import call
from nala_platform.attention.native import engine
from nala_platform.attention.signature import Options
from nala_platform.errors import UserError

LOW, HIGH = torch.tensor([0.5, 1.0, 1.5]).double(), torch.tensor([2.0, 4.5, 3.0]).double()
FLAGS = list(itertools.product([False, True], repeat=3))


@pytest.fixture(params=["chunked", "native"])
def backend(request):
    return request.param


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 tokens, groups of two rows, and spans of a tile: inputs of a test have many of each."""
    monkeypatch.setattr(engine, "SHORTEST_SPAN", 64)
    monkeypatch.setattr(engine, "SPAN_OF_SIZE", 0)
    monkeypatch.setattr(engine, "CAUSAL_SPAN_OF_SIZE", 0)
    monkeypatch.setattr(call, "CACHED", 2 * 16 * 8)
    monkeypatch.setattr(call, "SHORTEST", 16)
    monkeypatch.setattr(call, "FRESH", 0)  # memory is used again between blocks, as with long inputs


def both(backend, gradients, inputs, **options):
    """What a backend and the definition give: out and gradients by query, key, value, low and high."""

    def run(backend):
        def attention(query, key, value, low, high):
            return nala_attention(query, key, value, alpha_range=(low, high), backend=backend, **options)

        heads = inputs.query.shape[1]
        out, grads = gradients(attention, *inputs[:3], LOW[:heads], HIGH[:heads])
        return out, *grads

    return zip(run(backend), run("reference"), strict=True)


def same(ours, theirs):
    assert theirs.isfinite().all()
    # relative to the largest: a query whose keys all have other signs reaches 1 / eps
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11 * max(1.0, theirs.abs().max().item()))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("N", [1, 63, 65, 130])
@pytest.mark.parametrize(("use_rope", "is_causal", "use_mask"), FLAGS)
@pytest.mark.parametrize(
    ("direction", "gate", "power"), [("split", "tanh", 3.0), ("cosine", "sigmoid", 0.7), ("split", "sigmoid", 2.0)]
)
def test_it_equals_the_definition(
    backend, make_inputs, gradients, direction, gate, power, use_rope, is_causal, use_mask, N
):
    inputs = make_inputs(N)
    results = both(
        backend,
        gradients,
        inputs,
        direction=direction,
        alpha_gate=gate,
        key_power=power,
        rope=inputs.rope if use_rope else None,
        is_causal=is_causal,
        key_padding_mask=inputs.mask if use_mask else None,
    )
    for ours, theirs in results:
        same(ours, theirs)


@pytest.mark.parametrize(("size", "values"), [(16, 24), (32, 32), (48, 16), (64, 5), (128, 128)])
@pytest.mark.parametrize("N", [1, 65, 1000])
def test_sizes(backend, make_inputs, gradients, N, size, values):
    """With blocks as long as they are, causal at odd N and the other way at N = 1000."""
    inputs = make_inputs(N, B=1, H=2, D=size, E=values)
    for ours, theirs in both(
        backend, gradients, inputs, rope=inputs.rope, is_causal=N != 1000, key_padding_mask=inputs.mask
    ):
        same(ours, theirs)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("N", "M"), [(1, 90), (70, 1), (65, 130)])
def test_numbers_of_queries_and_keys_may_differ(backend, make_inputs, gradients, N, M):
    inputs = make_inputs(N, M=M)
    for ours, theirs in both(backend, gradients, inputs, key_padding_mask=inputs.mask):
        same(ours, theirs)


def test_one_query_does_not_cut_many_keys_into_blocks_of_one(make_inputs):
    inputs = make_inputs(1, M=5000)
    options = Options((1.5, 4.5), "tanh", 3.0, "split", None, False, None, 1e-6)
    made = call.cut_up(inputs.query, inputs.value, options, call.AS_THEY_ARE, both=False)
    assert len(made.blocks(5000)) == 1


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("is_causal", [False, True])
def test_views_of_one_projection(backend, gradients, is_causal):
    """Heads inside tokens, as a layer has them: the gradient of the projection is the same."""
    projection = torch.randn(2, 50, 3, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def run(backend):
        def attention(x):
            return nala_attention(*x.permute(2, 0, 3, 1, 4).unbind(), is_causal=is_causal, backend=backend)

        out, (grad,) = gradients(attention, projection)
        return out, grad

    for ours, theirs in zip(run(backend), run("reference"), strict=True):
        same(ours, theirs)


BOUNDS = {torch.float32: 5e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""Of the difference to float64 on the same inputs, in the norm: sums are float32, so half precision rounds once."""


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("direction", ["split", "cosine"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_narrow_dtypes(backend, make_inputs, gradients, dtype, direction, is_causal):
    narrow = make_inputs(65, D=16, E=16, dtype=dtype)
    wide = narrow._replace(**{name: getattr(narrow, name).double() for name in ("query", "key", "value")})
    results = []
    for inputs, name in ((narrow, backend), (wide, "reference")):
        out, grads = gradients(
            lambda *qkv, name=name: nala_attention(
                *qkv, direction=direction, is_causal=is_causal, key_padding_mask=narrow.mask, backend=name
            ),
            *inputs[:3],
        )
        results.append((out, *grads))
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - theirs).norm() <= BOUNDS[dtype] * theirs.norm()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("direction", "power"), [("split", 3.0), ("split", 1.5), ("cosine", 1.0)])
@pytest.mark.parametrize("alpha_range", [(0.5, 2.0), (1.5, 4.5)])
def test_gradcheck(backend, steep_case, alpha_range, direction, power, is_causal):
    options = {"direction": direction, "key_power": power, "is_causal": is_causal, "key_padding_mask": None}
    attention, leaves = steep_case(alpha_range, backend=backend, **options)
    assert torch.autograd.gradcheck(attention, leaves, eps=1e-8, atol=1e-4, rtol=1e-3)
    # smooth where no component is near 0
    away = [x.detach().sign() * (x.detach().abs() + 0.5) for x in leaves[:3]] + [x.detach() for x in leaves[3:]]
    assert torch.autograd.gradgradcheck(attention, [x.requires_grad_() for x in away], atol=1e-4, rtol=1e-3)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_zeros_have_no_gradient(backend, make_inputs, gradients, direction, is_causal):
    """A component, a token, a head of zeros, with exponents below 1, whose slope at 0 is infinite."""
    inputs = make_inputs(40, dtype=torch.float32)
    inputs.query[:, :, 1], inputs.key[:, :, 2], inputs.query[..., 3], inputs.key[..., 4] = 0, 0, 0, 0
    inputs.query[:, 1], inputs.key[:, 1] = 0, 0
    out, (query, key, value) = gradients(
        lambda *qkv: nala_attention(
            *qkv, direction=direction, alpha_range=(0.5, 2.0), key_power=0.5, is_causal=is_causal, backend=backend
        ),
        *inputs[:3],
    )
    assert all(x.isfinite().all() for x in (out, query, key, value))
    assert out[:, 1].abs().max() == out[:, :, 1].abs().max() == 0
    assert query[:, :, 1].abs().max() == query[..., 3].abs().max() == 0
    assert key[:, :, 2].abs().max() == key[..., 4].abs().max() == 0


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("is_causal", [False, True])
def test_what_stands_at_masked_keys_does_not_matter(backend, make_inputs, gradients, is_causal):
    inputs = make_inputs(40)
    results = []
    for junk in (0.0, float("nan")):
        key, value = (x.masked_fill(inputs.mask[:, None, :, None], junk) for x in inputs[1:3])
        out, grads = gradients(
            lambda *qkv: nala_attention(
                *qkv, rope=inputs.rope, is_causal=is_causal, key_padding_mask=inputs.mask, backend=backend
            ),
            inputs.query,
            key,
            value,
        )
        results.append((out, *grads))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("use_rope", [False, True])
def test_what_is_kept_for_the_gradient(backend, is_causal, use_rope):
    """Query, key, value and rotary tables, and at most 5 % more."""
    N, size = 4096, 64
    query, key, value = (torch.randn(1, 2, N, size, requires_grad=True) for _ in range(3))
    rope = (torch.randn(N, size), torch.randn(N, size)) if use_rope else None
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = nala_attention(query, key, value, rope=rope, is_causal=is_causal, backend=backend)
    inputs = [query, key, value, *(rope or ())]
    assert kept.keys() >= {x.untyped_storage().data_ptr() for x in inputs}
    assert sum(kept.values()) <= 1.05 * sum(x.nbytes for x in inputs)
    assert out.grad_fn.name() == "_ClosedFormBackward"


def test_autocast_does_not_narrow_the_sums(backend, make_inputs):
    """Neither forward nor in a backward pass that is called within the region."""
    inputs = make_inputs(40, D=16, dtype=torch.float32)
    results = []
    for enabled in (False, True):
        leaves = [x.clone().requires_grad_() for x in inputs[:3]]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out = nala_attention(*leaves, backend=backend)
            out.sum().backward()
        results.append((out, *(leaf.grad for leaf in leaves)))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_one_input_alone_may_want_a_gradient(backend, make_inputs):
    inputs = make_inputs(9)
    for wanted in range(3):
        leaves = [x.clone().requires_grad_(place == wanted) for place, x in enumerate(inputs[:3])]
        nala_attention(*leaves, backend=backend).sum().backward()
        assert [leaf.grad is not None for leaf in leaves] == [place == wanted for place in range(3)]


class TestWhereItCannotRun:
    def test_auto_is_plain_under_a_transform(self, backend, make_inputs):
        inputs = make_inputs(9)
        query = torch.stack([inputs.query, 2 * inputs.query])
        out = torch.func.vmap(lambda q: nala_attention(q, *inputs[1:3]))(query)
        same(out[1], nala_attention(query[1], *inputs[1:3], backend="reference"))
        with pytest.raises(UserError, match=rf"backend='{backend}' cannot run under a transform of torch\.func"):
            torch.func.vmap(lambda q: nala_attention(q, *inputs[1:3], backend=backend))(query)

    def test_auto_is_plain_in_forward_mode(self, make_inputs):
        inputs = make_inputs(9)
        way = torch.ones_like(inputs.query)
        _, slope = torch.func.jvp(lambda q: nala_attention(q, *inputs[1:3]).sum(), (inputs.query,), (way,))
        query = inputs.query.clone().requires_grad_()
        nala_attention(query, *inputs[1:3]).sum().backward()
        torch.testing.assert_close(slope, query.grad.sum())

    def test_auto_is_plain_for_a_learned_rope(self, backend, make_inputs):
        inputs = make_inputs(9)
        rope = tuple(table.clone().requires_grad_() for table in inputs.rope)
        nala_attention(*inputs[:3], rope=rope).sum().backward()
        assert all(table.grad.abs().sum() > 0 for table in rope)
        with pytest.raises(UserError, match=f"backend='{backend}' cannot run with a rope that requires a gradient"):
            nala_attention(*inputs[:3], rope=rope, backend=backend)
