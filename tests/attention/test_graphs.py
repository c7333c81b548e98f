"""torch.export and torch.compile(fullgraph=True) with a dynamic number of tokens: one graph for all lengths.

In float64: what is traced is another backend than what runs without, and a query whose keys all have other signs lifts
the difference of their roundings by 1 / eps.
"""

import pytest
import torch
from torch.export import Dim

from nala_platform.attention import ATTENTION


def marked(*cases, mark):
    return [pytest.param(*case, marks=mark) for case in cases]


PLAIN, CAUSAL, OTHERS = ("nala", False), ("nala", True), [("softmax", True), ("linear", False)]
CASES = pytest.mark.parametrize(("name", "is_causal"), [PLAIN, CAUSAL, *OTHERS])
# What inductor makes code of has been traced too: of each case one of the two is enough, and the other is a campaign.
TRACED = pytest.mark.parametrize(
    ("name", "is_causal"),
    [PLAIN, *marked(*OTHERS, mark=pytest.mark.slow), *marked(CAUSAL, mark=pytest.mark.campaign)],
)
GENERATED = pytest.mark.parametrize(
    ("name", "is_causal"),
    [*marked(PLAIN, CAUSAL, mark=pytest.mark.slow), *marked(*OTHERS, mark=pytest.mark.campaign)],
)


class Module(torch.nn.Module):
    def __init__(self, name, is_causal):
        super().__init__()
        self.attention, self.is_causal = ATTENTION[name], is_causal
        self.low, self.high = torch.nn.Parameter(torch.full((3,), 0.5)), torch.nn.Parameter(torch.full((3,), 2.0))

    def forward(self, query, key, value, cos, sin, mask):
        return self.attention(
            query,
            key,
            value,
            alpha_range=(self.low, self.high),
            rope=(cos, sin),
            is_causal=self.is_causal,
            key_padding_mask=mask,
        )


@pytest.fixture
def arguments(make_inputs):
    def make(N, dtype=torch.float64, B=2):
        inputs = make_inputs(N, dtype=dtype, B=B)
        return (*inputs[:3], *(table.float() for table in inputs.rope), inputs.mask)

    return make


@pytest.mark.parametrize("B", [1, 2])
@CASES
def test_export(arguments, name, is_causal, B):
    tokens = Dim("tokens", min=2, max=1 << 20)
    axes = ({2: tokens},) * 3 + ({0: tokens},) * 2 + ({1: tokens},)
    module = Module(name, is_causal)
    exported = torch.export.export(module, arguments(70, B=B), dynamic_shapes=axes).module()
    for N in (2, 33, 64, 130):
        torch.testing.assert_close(exported(*arguments(N, B=B)), module(*arguments(N, B=B)), rtol=1e-9, atol=1e-8)


@TRACED
def test_compile_in_one_graph(arguments, name, is_causal):
    """Through the tracer and the autograd of the compiler; inductor's code generation is in the slow test."""
    _check_compiled(Module(name, is_causal), arguments, lengths=(70, 33), compiler="aot_eager", dtype=torch.float64)


@pytest.mark.slow
def test_compile_in_half_precision(arguments):
    """Where the gradients of queries and keys pass a function of our own."""
    _check_compiled(Module("nala", False), arguments, lengths=(33,), compiler="aot_eager", dtype=torch.bfloat16)


@GENERATED
def test_compile_with_inductor(arguments, name, is_causal):
    _check_compiled(Module(name, is_causal), arguments, lengths=(70, 64, 1), compiler="inductor", dtype=torch.float64)


def _check_compiled(module, arguments, *, lengths, compiler, dtype):
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=compiler)
    tolerance = {"rtol": 1e-8, "atol": 1e-8} if dtype == torch.float64 else {"rtol": 1e-2, "atol": 1e-2}
    for N in lengths:
        results = []
        for run in (module, compiled):
            inputs = arguments(N, dtype)
            leaves = [x.requires_grad_() for x in inputs[:3]]
            out = run(*inputs)
            results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
        for ours, theirs in zip(*results, strict=True):
            scale = theirs.detach().float().abs().max().clamp_min(1)
            torch.testing.assert_close(ours / scale, theirs / scale, check_dtype=False, **tolerance)
