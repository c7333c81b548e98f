"""nala_step against the causal form, however the tokens are cut into pieces."""

import pytest
import torch

from nala_platform.attention import State, nala_attention, nala_step
from nala_platform.errors import UserError

OPTIONS = {"alpha_range": (0.5, 2.0), "alpha_gate": "sigmoid", "key_power": 2.5, "eps": 1e-3}


def in_pieces(inputs, sizes, *, rope=None, mask=None, **options):
    outs, state, start = [], None, 0
    for size in sizes:
        piece = slice(start, start + size)
        out, state = nala_step(
            *(x[:, :, piece] for x in inputs[:3]),
            state,
            rope=None if rope is None else tuple(table[piece] for table in rope),
            key_padding_mask=None if mask is None else mask[:, piece],
            **options,
        )
        outs.append(out)
        start += size
    return torch.cat(outs, dim=2), state


@pytest.mark.parametrize("sizes", [[1] * 71, [71], [1, 70], [7, 64], [64, 7], [30, 40, 1], [65, 1, 5]], ids=str)
@pytest.mark.parametrize(("use_rope", "use_mask"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_pieces_equal_the_causal_form(make_inputs, gradients, direction, use_rope, use_mask, sizes):
    inputs = make_inputs(71)
    inputs.mask[0, :9] = True  # left padding: the first queries see nothing
    rope, mask = inputs.rope if use_rope else None, inputs.mask if use_mask else None

    out, grads = gradients(
        lambda *qkv: in_pieces(qkv, sizes, rope=rope, mask=mask, direction=direction, **OPTIONS)[0], *inputs[:3]
    )
    expected, expected_grads = gradients(
        lambda *qkv: nala_attention(
            *qkv,
            rope=rope,
            is_causal=True,
            key_padding_mask=mask,
            direction=direction,
            backend="reference",
            **OPTIONS,
        ),
        *inputs[:3],
    )
    for ours, theirs in zip((out, *grads), (expected, *expected_grads), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11 * max(1, theirs.abs().max().item()))


@pytest.mark.parametrize("sizes", [[1] * 71, [1, 70], [64, 7], [30, 40, 1]], ids=str)
@pytest.mark.parametrize("use_mask", [False, True])
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_pieces_without_gradients(make_inputs, direction, use_mask, sizes):
    """Where the kernels of a CPU take the step; sizes that are no multiple of a vector."""
    inputs = make_inputs(71, D=10, E=7)
    inputs.mask[0, :9] = True
    mask = inputs.mask if use_mask else None
    with torch.no_grad():
        out, state = in_pieces(inputs, sizes, rope=inputs.rope, mask=mask, direction=direction, **OPTIONS)
    options = {"rope": inputs.rope, "key_padding_mask": mask, "direction": direction, **OPTIONS}
    expected = nala_attention(*inputs[:3], is_causal=True, backend="reference", **options)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-11 * max(1, expected.abs().max().item()))
    # and the state is what the operators of PyTorch would have left
    inputs = inputs._replace(query=inputs.query.requires_grad_())
    _, theirs = in_pieces(inputs, sizes, rope=inputs.rope, mask=mask, direction=direction, **OPTIONS)
    for ours, part in zip(state, theirs, strict=True):
        torch.testing.assert_close(ours, part.detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("dtype", "rtol", "atol"), [(torch.float32, 1e-5, 1e-5), (torch.bfloat16, 2**-8, 2e-5)])
@pytest.mark.parametrize("sizes", [[1] * 71, [7, 64]], ids=["one by one", "7 and 64"])
def test_bound_in_narrow_dtypes(make_inputs, sizes, dtype, rtol, atol):
    """float32 within 1e-5; bfloat16 within the rounding of the output, one step, since the state is float32."""
    inputs = make_inputs(71, dtype=dtype)
    out, state = in_pieces(inputs, sizes)
    assert out.dtype == dtype
    assert {part.dtype for part in state} == {torch.float32}
    torch.testing.assert_close(out, nala_attention(*inputs[:3], is_causal=True), rtol=rtol, atol=atol)


def test_state_has_a_fixed_size_and_is_left_as_it_was(make_inputs):
    inputs = make_inputs(6)
    _, first = nala_step(*(x[:, :, :5] for x in inputs[:3]), key_padding_mask=inputs.mask[:, :5])
    kept = [part.clone() for part in first]
    _, second = nala_step(*(x[:, :, 5:] for x in inputs[:3]), first, key_padding_mask=inputs.mask[:, 5:])
    for state in (first, second):
        assert [part.shape for part in state] == [(2, 3, 16, 5), (2, 3, 16), (2,)]
    assert all(torch.equal(part, old) for part, old in zip(first, kept, strict=True))
    assert torch.equal(second.count_B, (~inputs.mask).sum(1))


def test_hidden_keys_do_not_enter_the_state(make_inputs):
    inputs = make_inputs(6)
    _, state = nala_step(*inputs[:3], key_padding_mask=inputs.mask)
    hidden = inputs.mask[:, None, :, None]
    key, value = (torch.where(hidden, torch.nan, x) for x in (inputs.key, inputs.value))
    _, other = nala_step(inputs.query, key, value, key_padding_mask=inputs.mask)
    assert all(torch.equal(part, same) for part, same in zip(other, state, strict=True))


def test_state_follows_its_beam(make_inputs):
    inputs, beams = make_inputs(6), torch.tensor([1, 1, 0])
    _, state = nala_step(*(x[:, :, :5] for x in inputs[:3]))
    last = [x[beams, :, 5:] for x in inputs[:3]]
    out, _ = nala_step(*last, State(*(part[beams] for part in state)))
    expected = nala_attention(*(x[beams] for x in inputs[:3]), is_causal=True)
    torch.testing.assert_close(out, expected[:, :, 5:])


def test_autocast_does_not_narrow_the_state(make_inputs):
    inputs = make_inputs(9, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        inside = in_pieces(inputs, [4, 1, 4])
    outside = in_pieces(inputs, [4, 1, 4])
    for ours, theirs in zip((inside[0], *inside[1]), (outside[0], *outside[1]), strict=True):
        assert torch.equal(ours, theirs)


def test_state_of_another_size_or_dtype_is_refused(make_inputs):
    inputs = make_inputs(2)
    _, state = nala_step(*inputs[:3])
    with pytest.raises(UserError, match=r"state key_value_BHFE must be torch.float64 \(1, 3, 16, 5\)"):
        nala_step(*(x[:1] for x in inputs[:3]), state)
    with pytest.raises(UserError, match=r"must be torch.float32 .* got torch.float64"):
        nala_step(*(x.float() for x in inputs[:3]), state)
