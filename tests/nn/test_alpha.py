import pytest
import torch

from nala_platform.errors import UserError
from nala_platform.nn.alpha import BOUND_MAX, BOUND_MIN, LearnedAlphaRange


@pytest.mark.parametrize(
    "start", [(1.5, 4.5), (0.5, 2.0), (BOUND_MIN, BOUND_MAX), (3.0, 3.05), (7.95, 8.0), (0.1, 0.15)]
)
def test_starts_at_the_given_range(start):
    low, high = LearnedAlphaRange(3, start)()
    torch.testing.assert_close(low, torch.full((3,), start[0]), rtol=0, atol=2e-5)
    torch.testing.assert_close(high, torch.full((3,), start[1]), rtol=0, atol=2e-5)


def test_usual_starts_are_exact_to_rounding():
    for start in ((1.5, 4.5), (0.5, 2.0)):
        low, high = LearnedAlphaRange(1, start)()
        assert abs(low.item() - start[0]) < 5e-7
        assert abs(high.item() - start[1]) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [-1e30, -3e4, -1.0, 0.0, 1.0, 3e4, 1e30])
def test_order_and_bounds_hold_for_every_weight(value, dtype):
    learned = LearnedAlphaRange(4, (1.5, 4.5)).to(dtype)
    for other in (-6e4, -0.3, 6e4):
        with torch.no_grad():
            learned.low.fill_(min(max(value, torch.finfo(dtype).min), torch.finfo(dtype).max))
            learned.high.fill_(other)
        low, high = learned()
        assert torch.all(low >= BOUND_MIN)
        assert torch.all(low < high)
        assert torch.all(high <= BOUND_MAX)
        assert low.dtype == torch.float32


def test_violent_steps_keep_the_range_and_the_way_back():
    learned = LearnedAlphaRange(2, (1.5, 4.5))
    optimizer = torch.optim.SGD(learned.parameters(), lr=100.0)
    for sign in (1, -1, 1, 1, -1, -1):
        low, high = learned()
        (sign * (low.sum() + 3 * high.sum())).backward()
        optimizer.step()
        optimizer.zero_grad()
        low, high = learned()
        assert torch.all((low >= BOUND_MIN) & (low < high) & (high <= BOUND_MAX))
    low, high = learned()
    (low.sum() + high.sum()).backward()
    for parameter in learned.parameters():
        assert parameter.grad is not None
        assert torch.all(parameter.grad > 0)


def test_gradients_are_those_of_the_equation():
    learned = LearnedAlphaRange(2, (0.5, 2.0)).double()

    def ends(low, high):
        return torch.func.functional_call(learned, {"low": low, "high": high})

    # The module computes in float32, so the steps of the numeric derivative are wide.
    start = tuple(parameter.detach().clone().requires_grad_() for parameter in (learned.low, learned.high))
    assert torch.autograd.gradcheck(ends, start, eps=1e-2, atol=2e-2, rtol=2e-2, nondet_tol=0)


@pytest.mark.parametrize("start", [(0.05, 2.0), (1.0, 9.0), (2.0, 2.01), (3.0, 1.0), (float("nan"), 2.0)])
def test_a_start_outside_the_bounds_is_refused(start):
    with pytest.raises(UserError, match="learn_alpha starts from alpha_range"):
        LearnedAlphaRange(2, start)
