"""Every mechanism under torch.jit.trace, torch.fx and the transforms of torch.func, against the plain call."""

import io
import warnings

import pytest
import torch
from torch.autograd.functional import jacobian
from torch.func import hessian, jacfwd, jacrev, vmap

from nala_platform.attention import ATTENTION, nala_attention
from nala_platform.errors import UserError

EVERY = pytest.mark.parametrize("name", ATTENTION)
CAUSAL = pytest.mark.parametrize("is_causal", [False, True])


class Module(torch.nn.Module):
    def __init__(self, name, is_causal):
        super().__init__()
        self.attention, self.is_causal = ATTENTION[name], is_causal

    def forward(self, query, key, value, cos, sin):
        return self.attention(query, key, value, rope=(cos, sin), is_causal=self.is_causal)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
class TestTrace:
    @EVERY
    @CAUSAL
    def test_it_holds_for_other_lengths_once_saved(self, make_inputs, name, is_causal):
        """No comparison of lengths warns that the trace may not generalise, and none is baked in."""
        module = Module(name, is_causal)
        with warnings.catch_warnings():
            warnings.simplefilter("error", torch.jit.TracerWarning)
            traced = torch.jit.trace(module, arguments(make_inputs(70)))
        file = io.BytesIO()
        torch.jit.save(traced, file)
        file.seek(0)
        loaded = torch.jit.load(file)
        for N in (1, 5, 64, 130):
            given = arguments(make_inputs(N))
            torch.testing.assert_close(loaded(*given), module(*given), rtol=1e-9, atol=1e-8)

    def test_half_precision(self, make_inputs):
        """Where eager gradients pass a function of our own, which no trace could be saved with."""
        given = arguments(make_inputs(9, dtype=torch.bfloat16))
        traced = torch.jit.trace(Module("nala", False), given)
        torch.jit.save(traced, io.BytesIO())
        torch.testing.assert_close(traced(*given), Module("nala", False)(*given))

    @pytest.mark.parametrize("backend", ["native", "chunked"])
    def test_a_backend_without_operators_of_its_own_is_refused(self, make_inputs, backend):
        inputs = make_inputs(9)
        with pytest.raises(UserError, match=r"cannot run inside torch.jit.trace or torch.onnx.export; backend='plain'"):
            torch.jit.trace(lambda *qkv: nala_attention(*qkv, backend=backend), inputs[:3])


@EVERY
@CAUSAL
def test_fx_records_one_node(make_inputs, name, is_causal):
    module = Module(name, is_causal)
    graph = torch.fx.symbolic_trace(module)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [ATTENTION[name]]
    for N in (9, 70):
        assert torch.equal(graph(*arguments(make_inputs(N))), module(*arguments(make_inputs(N))))


@EVERY
@CAUSAL
class TestTransforms:
    def test_jacobians_are_those_of_the_rows_one_by_one(self, make_inputs, name, is_causal):
        query, *rest = arguments(make_inputs(5, B=1, H=2, D=4, E=3))

        def attend(query):
            return ATTENTION[name](query, *rest[:2], rope=tuple(rest[2:]), is_causal=is_causal)

        expected = jacobian(attend, query)
        for found in (
            jacrev(attend)(query),
            jacfwd(attend)(query),
            jacobian(attend, query, vectorize=True),
            jacobian(attend, query, vectorize=True, strategy="forward-mode"),
        ):
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)

    def test_vmap_is_a_loop(self, make_inputs, name, is_causal):
        calls = [arguments(make_inputs(7, seed=seed)) for seed in range(3)]
        module = Module(name, is_causal)
        found = vmap(module)(*(torch.stack(parts) for parts in zip(*calls, strict=True)))
        torch.testing.assert_close(found, torch.stack([module(*given) for given in calls]), rtol=1e-9, atol=1e-9)

    def test_hessian(self, make_inputs, name, is_causal):
        """Against central differences of the gradient."""
        query, *rest = arguments(make_inputs(3, B=1, H=1, D=4, E=2))

        def loss(query):
            return ATTENTION[name](query, *rest[:2], rope=tuple(rest[2:]), is_causal=is_causal, eps=0.1).square().sum()

        found = hessian(loss)(query)
        direction, step = torch.randn_like(query), 1e-5
        ahead, behind = (torch.func.grad(loss)(query + sign * step * direction) for sign in (1, -1))
        expected = (ahead - behind) / (2 * step)
        torch.testing.assert_close((found * direction).sum((4, 5, 6, 7)), expected, rtol=1e-4, atol=1e-5)


def arguments(inputs):
    return *inputs[:3], *(table.to(inputs.query.dtype) for table in inputs.rope)
