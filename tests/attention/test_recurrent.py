"""nala_step against the causal form, however the tokens are cut into pieces."""

import pytest
import torch

from nala_platform.attention import ATTENTION, STEPS, State, nala_attention, nala_step
from nala_platform.attention.native import step as native_step
from nala_platform.attention.native.compiler import missing
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


@pytest.mark.parametrize("sizes", [[1] * 71, [71], [64, 7], [30, 40, 1]], ids=str)
@pytest.mark.parametrize("mechanism", ["linear", "relu"])
def test_pieces_of_other_linear_attention_equal_its_causal_form(make_inputs, gradients, mechanism, sizes):
    inputs = make_inputs(71)
    inputs.mask[0, :9] = True

    def pieces(*qkv):
        outs, state = [], None
        for parts in zip(*(x.split(sizes, 2) for x in qkv), *(x.split(sizes) for x in inputs.rope), strict=True):
            start = sum(x.shape[2] for x in outs)
            mask = inputs.mask[:, start : start + parts[0].shape[2]]
            out, state = STEPS[mechanism](*parts[:3], state, rope=parts[3:], key_padding_mask=mask)
            outs.append(out)
        return torch.cat(outs, 2)

    out, grads = gradients(pieces, *inputs[:3])
    options = {"rope": inputs.rope, "is_causal": True, "key_padding_mask": inputs.mask, "backend": "reference"}
    expected, expected_grads = gradients(lambda *qkv: ATTENTION[mechanism](*qkv, **options), *inputs[:3])
    for ours, theirs in zip((out, *grads), (expected, *expected_grads), strict=True):
        # relu leaves sums near 0, which are divided by
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9 * max(1, theirs.abs().max().item()))


@pytest.mark.parametrize("mechanism", ["linear", "relu"])
def test_a_state_of_another_mechanism_is_refused(make_inputs, mechanism):
    inputs = make_inputs(2)
    _, state = nala_step(*inputs[:3])
    with pytest.raises(UserError, match=r"state key_value_BHFE must be torch.float64 \(2, 3, 8, 5\)"):
        STEPS[mechanism](*inputs[:3], state)
    with pytest.raises(UserError, match="alpha_gate='tan' is unknown"):
        STEPS[mechanism](*inputs[:3], alpha_gate="tan")


def one_by_one(inputs, *, rope=None, mask=None, **options):
    return in_pieces(inputs, [1] * inputs.query.shape[2], rope=rope, mask=mask, **options)


@pytest.fixture
def quick(monkeypatch):
    """How often one token took the short way, and a switch that closes it."""
    if missing() is not None:
        pytest.skip("no compiler")
    taken = []
    run = native_step.run
    monkeypatch.setattr(native_step, "run", lambda code: (taken.append(code), run(code)))
    return taken


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("use_rope", "use_mask"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_the_short_way_of_one_token_gives_the_bits_of_the_long_one(
    make_inputs, quick, monkeypatch, dtype, direction, use_rope, use_mask
):
    inputs = make_inputs(9, dtype=dtype, D=10, E=7)
    inputs.mask[0, :3] = True
    wide = torch.promote_types(dtype, torch.float32)
    rope, mask = tuple(x.to(wide) for x in inputs.rope) if use_rope else None, inputs.mask if use_mask else None
    found = one_by_one(inputs, rope=rope, mask=mask, direction=direction, **OPTIONS)
    assert quick == [0] * 8
    monkeypatch.setattr("nala_platform.attention.recurrent.quick_step", lambda *_: None)
    expected = one_by_one(inputs, rope=rope, mask=mask, direction=direction, **OPTIONS)
    assert len(quick) == 8
    assert torch.equal(found[0], expected[0])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found[1], expected[1], strict=True))


def test_what_is_out_of_the_ordinary_goes_the_long_way(make_inputs, quick):
    """Gradients, learned exponents, strided states, tables of another dtype; and mistakes are told as ever."""
    inputs = make_inputs(3)
    _, state = nala_step(*(x[:, :, :1] for x in inputs[:3]))
    one = [x[:, :, 1:2] for x in inputs[:3]]
    expected, _ = nala_step(*one, state)
    assert not quick, "a gradient may be wanted"
    with torch.no_grad():
        bounds = torch.full((3,), 1.5, dtype=torch.float64), 4.5
        strided = State(state.key_value_BHFE.mT.contiguous().mT, *state[1:])
        for query, before, options in (
            (one[0], state, {"alpha_range": bounds}),
            (one[0], strided, {}),
            (torch.complex(one[0], -one[0]).conj().imag, state, {}),
        ):
            out, _ = nala_step(query, *one[1:], before, **options)
            torch.testing.assert_close(out, expected)
        assert not quick
        for wrong in ({"eps": 0.0}, {"key_power": -1.0}, {"alpha_gate": "tan"}, {"rope": inputs.rope}):
            with pytest.raises(UserError):
                nala_step(*one, state, **wrong)
        with pytest.raises(UserError, match="state key_BHF must be"):
            nala_step(*one, state._replace(key_BHF=state.key_BHF[:, :, 1:]))
        out, _ = nala_step(*one, state)
        assert quick == [0]
        torch.testing.assert_close(out, expected)
