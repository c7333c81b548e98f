"""The C++ kernels beyond what tests/attention/test_closed_forms.py asks of every backend: threads, dtypes, choice."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from nala_platform.attention import nala_attention
from nala_platform.attention.native import form
from nala_platform.attention.signature import Options
from nala_platform.errors import UserError

OPTIONS = Options((1.5, 4.5), "tanh", 3.0, "split", None, False, None, 1e-6)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_the_number_of_threads_changes_no_bit(make_inputs, direction, is_causal, results):
    inputs = make_inputs(5000, B=1, H=3, D=16, E=24, dtype=torch.float32)
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(results(inputs, direction=direction, is_causal=is_causal))
    for one, two, five in zip(*found, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, five)


@pytest.mark.parametrize("is_causal", [False, True])
def test_many_spans(make_inputs, is_causal, results):
    """As long as they are; the yardstick is the linear form in float64."""
    inputs = make_inputs(4500, B=1, H=2, D=20, E=12)
    for ours, theirs in zip(
        results(inputs, is_causal=is_causal), results(inputs, is_causal=is_causal, backend="plain"), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11 * theirs.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_narrow_number_arrives_and_leaves_as_it_is(dtype):
    """One query and one key that fit: the output is the value, subnormal numbers, infinity and NaN among them."""
    value = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).view(1, 1024, 1, 64)
    ones = torch.ones(1, 1024, 1, 8, dtype=dtype)
    out = nala_attention(ones, ones, value, key_power=1.0, eps=1e-30, backend="native")
    number = value.isfinite()
    # infinity times the zeros of the features' other half is NaN, which the definition gives too
    assert torch.equal(out[number], value[number])
    assert not out[~number].isfinite().any()


def test_gradients_saturate_in_half_precision():
    """As `precision.bounded` has it: with a power below 1 a small query's gradient passes 65504."""
    query = torch.tensor([[[[1e-7, 6e-5]]]], dtype=torch.float16).expand(1, 1, 3, 2)
    key, value = torch.rand(1, 1, 3, 2).half() + 0.5, torch.randn(1, 1, 3, 2).half()
    grads = {}
    for backend in ("native", "chunked"):
        leaf = query.clone().requires_grad_()
        out = nala_attention(leaf, key, value, alpha_range=(0.2, 0.4), backend=backend)
        (grads[backend],) = torch.autograd.grad(out, leaf, torch.full_like(out, 1e3))
    assert grads["native"].abs().max() == torch.finfo(torch.float16).max
    torch.testing.assert_close(grads["native"], grads["chunked"])


class TestChoice:
    def test_auto_takes_it(self, make_inputs, results):
        inputs = make_inputs(9)
        assert form.is_at_hand(*inputs[:3], OPTIONS)
        assert torch.equal(results(inputs, backend="auto")[0], results(inputs)[0])

    def test_a_counter_of_operations_sees_some(self, make_inputs):
        """It counts PyTorch's operators; with kernels of our own a model's GMACs would leave out the attention."""
        inputs = make_inputs(9)
        with FlopCounterMode(display=False) as counter:
            nala_attention(*inputs[:3])
        assert counter.get_total_flops() > 0

    def test_what_it_cannot_take(self, make_inputs):
        inputs = make_inputs(9)
        meta = [x.to("meta") for x in inputs[:3]]
        with pytest.raises(UserError, match="computes on plain tensors on a CPU, got a Tensor on meta"):
            nala_attention(*meta, backend="native")
        assert nala_attention(*meta).shape == inputs.value.shape


class TestWhatItIsGiven:
    """An address says nothing of what stands there."""

    def test_another_default_device(self, make_inputs):
        inputs = make_inputs(9)
        for options in ({}, {"is_causal": True}):
            expected = nala_attention(*inputs[:3], **options)
            with torch.device("meta"):
                assert torch.equal(nala_attention(*inputs[:3], **options), expected)

    def test_nothing(self):
        x = torch.randn(0, 3, 10, 8)
        with pytest.raises(UserError, match=r"takes no empty tensors, got \(0, 3, 10, 8\)"):
            nala_attention(x, x, x, backend="native")
        assert torch.equal(nala_attention(x, x, x), nala_attention(x, x, x, backend="plain"))

    def test_mask_or_range_on_another_device(self, make_inputs):
        inputs = make_inputs(9)
        for options in (
            {"key_padding_mask": inputs.mask.to("meta")},
            {"alpha_range": (torch.ones(3, device="meta"), 4.5)},
        ):
            with pytest.raises(UserError, match="computes on plain tensors on a CPU, got a Tensor on meta"):
                nala_attention(*inputs[:3], backend="native", **options)

    def test_tensors_that_are_not_what_stands_in_memory(self, make_inputs):
        inputs = make_inputs(9)
        query, key, value = inputs[:3]
        turned = torch._neg_view(query)
        assert torch.equal(
            nala_attention(turned, key, value, backend="native"), nala_attention(-query, key, value, backend="native")
        )
        leaf = query.clone().requires_grad_()
        zero = torch._efficientzerotensor(value.shape, dtype=value.dtype)
        (grad,) = torch.autograd.grad(nala_attention(leaf, key, value, backend="native"), leaf, zero)
        assert torch.equal(grad, torch.zeros_like(query))

    def test_saved_tensors_that_went_elsewhere(self, make_inputs):
        """To memory that PyTorch has not aligned, and to another dtype."""
        inputs = make_inputs(70)

        def grads(unpack):
            leaves = [x.clone().requires_grad_() for x in inputs[:3]]
            with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
                return torch.autograd.grad(nala_attention(*leaves, backend="native").square().sum(), leaves)

        def moved(x):
            memory = torch.empty(x.numel() + 1, dtype=x.dtype)
            return memory[1:].view(x.shape).copy_(x)

        for ours, theirs in zip(grads(moved), grads(lambda x: x), strict=True):
            assert torch.equal(ours, theirs)
        with pytest.raises(RuntimeError, match="a saved tensor came back as"):
            grads(lambda x: x.bfloat16())

    def test_fake_tensors_and_traces(self, make_inputs):
        inputs = make_inputs(9)
        expected = nala_attention(*inputs[:3], backend="native")
        graph = make_fx(lambda *qkv: nala_attention(*qkv, backend="native"))(*inputs[:3])
        assert torch.equal(graph(*inputs[:3]), expected)
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert nala_attention(*inputs[:3], backend="native").shape == expected.shape

    def test_a_tiny_eps_and_a_query_of_zeros(self):
        x = torch.rand(1, 1, 3, 4)
        out = nala_attention(torch.zeros_like(x), x, x, eps=1e-39, backend="native")
        assert torch.equal(out, torch.zeros_like(x))

    @pytest.mark.parametrize("bits", [0x7FFFFFFF, -1, 0x7FC00000])
    def test_every_nan_stays_one(self, bits):
        low = torch.tensor([bits], dtype=torch.int64).to(torch.int32).view(torch.float32)
        x = torch.rand(1, 1, 40, 16)
        assert nala_attention(x, x, x, alpha_range=(low, 4.5), backend="native").isnan().all()
