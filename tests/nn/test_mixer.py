import pytest
import torch
import torch.nn.functional as F

from nala_platform.attention import ATTENTION
from nala_platform.errors import UserError
from nala_platform.nn.mixer import GatedAttention
from nala_platform.nn.rope import rotary_tables

CPU = torch.device("cpu")


def by_definition(mixer, x_BYXC, rope):
    """The class's equation, one head at a time, on the operator's quadratic definition."""
    batch, height, width, dim = x_BYXC.shape
    size = dim // mixer.heads
    q, k, v, gate = (x_BYXC @ mixer.qkvg.weight.T + mixer.qkvg.bias).split(dim, dim=-1)
    mixed = torch.empty_like(v)
    for head in range(mixer.heads):
        here = slice(head * size, (head + 1) * size)
        tokens = [part[..., here].reshape(batch, 1, height * width, size) for part in (q, k, v)]
        out = mixer.attention(*tokens, rope=rope, backend="reference")
        mixed[..., here] = out.reshape(batch, height, width, size)
    padded = F.pad(v, (0, 0, 2, 2, 2, 2))
    near = mixer.lepe.bias + sum(
        padded[:, i : i + height, j : j + width] * mixer.lepe.weight[:, 0, i, j] for i in range(5) for j in range(5)
    )
    summed = mixed + near
    centred = summed - summed.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * mixer.ln.weight + mixer.ln.bias
    return (normed * gate * torch.sigmoid(gate)) @ mixer.out_proj.weight.T + mixer.out_proj.bias


@pytest.mark.parametrize("attention", list(ATTENTION))
@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5)])
def test_values_and_gradients_follow_the_definition(attention, height, width):
    torch.manual_seed(0)
    mixer = GatedAttention(16, 2, attention).double()
    x = torch.randn(2, height, width, 16, dtype=torch.float64, requires_grad=True)
    rope = rotary_tables(height, width, 8, device=CPU)
    grad = torch.randn_like(x)
    got, expected = mixer(x, rope), by_definition(mixer, x, rope)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    wrt = [x, *mixer.parameters()]
    for one, other in zip(torch.autograd.grad(got, wrt, grad), torch.autograd.grad(expected, wrt, grad), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)


def test_a_function_is_taken_as_the_mechanism():
    seen = []

    def keep_values(query, key, value, **options):
        seen.append(options)
        return value

    mixer = GatedAttention(8, 2, keep_values, alpha_range=(0.5, 2.0), alpha_gate="sigmoid", direction="cosine")
    rope = rotary_tables(2, 2, 4, device=CPU)
    mixer(torch.randn(1, 2, 2, 8), rope)
    assert seen[-1]["alpha_range"] == (0.5, 2.0)
    assert (seen[-1]["alpha_gate"], seen[-1]["direction"]) == ("sigmoid", "cosine")
    assert seen[-1]["rope"] is rope


def test_the_options_act_in_nala():
    torch.manual_seed(0)
    x, rope = torch.randn(1, 3, 3, 16), rotary_tables(3, 3, 8, device=CPU)
    plain = GatedAttention(16, 2)
    for options in (
        {"alpha_range": (0.5, 2.0)},
        {"alpha_gate": "sigmoid"},
        {"direction": "cosine"},
        {"key_power": 2.0},
    ):
        other = GatedAttention(16, 2, **options)
        other.load_state_dict(plain.state_dict())
        assert not torch.allclose(plain(x, rope), other(x, rope), atol=1e-5), options


def test_the_learned_range_acts_and_starts_as_the_fixed_one():
    torch.manual_seed(0)
    x, rope = torch.randn(1, 3, 3, 16), rotary_tables(3, 3, 8, device=CPU)
    fixed, learned = GatedAttention(16, 2), GatedAttention(16, 2, learn_alpha=True)
    learned.load_state_dict(fixed.state_dict(), strict=False)
    torch.testing.assert_close(learned(x, rope), fixed(x, rope), rtol=1e-4, atol=1e-5)
    learned(x, rope).square().sum().backward()
    assert learned.alpha.low.shape == learned.alpha.high.shape == (2,)
    assert torch.all(learned.alpha.low.grad != 0)
    assert torch.all(learned.alpha.high.grad != 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "softmx"}, "'softmx'.*did you mean 'softmax'"),
        ({"alpha_range": (3.0, 1.0)}, "alpha_range"),
        ({"alpha_gate": "tan"}, "alpha_gate='tan'"),
        ({"direction": "cos"}, "direction='cos'"),
        ({"key_power": -1.0}, "key_power"),
        ({"heads": 3}, "16 channels in 3 heads"),
        ({"heads": 8}, "16 channels in 8 heads"),
        ({"attention": "linear", "learn_alpha": True}, "learn_alpha needs attention 'nala', got 'linear'"),
        ({"attention": "softmax", "alpha_gate": "tan"}, "alpha_gate='tan'"),
    ],
)
def test_wrong_options_stop_at_construction(options, message):
    with pytest.raises(UserError, match=message):
        GatedAttention(16, **{"heads": 2, **options})
