"""The kernels under torch.compile: one operator, and no bit differs from the same without."""

import pytest
import torch

from nala_platform.attention import nala_attention
from nala_platform.attention.native import library, operator


class TestInAGraph:
    """Under torch.compile: one operator, and no bit differs from the same without."""

    @pytest.mark.parametrize("is_causal", [False, True])
    def test_it_is_one_node(self, make_inputs, is_causal):
        graphs = []

        def keep(graph, _):
            graphs.append(str(graph.code))
            return graph

        def attention(query, key, value, low, high, rope, mask):
            options = {"rope": rope, "key_padding_mask": mask, "is_causal": is_causal}
            return nala_attention(query * 2, key, value, alpha_range=(low, high), **options) * 2

        compiled = torch.compile(attention, backend=keep, fullgraph=True, dynamic=True)
        for N in (40, 70, 2500):
            inputs = make_inputs(N, H=2, D=10, E=6, dtype=torch.float32)
            found = []
            for function in (compiled, attention):
                leaves = [x.clone().requires_grad_() for x in inputs[:3]]
                leaves += [torch.full((2,), bound, requires_grad=True) for bound in (0.5, 2.0)]
                out = function(*leaves, inputs.rope, inputs.mask)
                found.append((out.detach(), *torch.autograd.grad(out.square().sum(), leaves)))
            assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))
        assert len(graphs) == 1
        assert graphs[0].count("torch.ops.nala.native") == 1

    @pytest.mark.parametrize("is_causal", [False, True])
    @pytest.mark.parametrize("use_rope", [False, True])
    def test_the_operator_keeps_pytorch_s_rules(self, make_inputs, use_rope, is_causal):
        """Strides, aliases, shapes of fake tensors, gradients: what torch asks of an operator of anyone's."""
        inputs = make_inputs(70, H=2, D=10, E=6)
        tensors = [x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in inputs[:3]]
        bounds = [torch.full((2,), bound, dtype=torch.float64, requires_grad=True) for bound in (0.5, 2.0)]
        rope = inputs.rope if use_rope else (None, None)
        rest = (inputs.mask, "tanh", 3.0, "split", is_causal, 1e-6, library.lanes_of(True, False))
        torch.library.opcheck(operator.nala_native, (*tensors, *bounds, *rope, *rest))

    def test_a_transform_inside_is_plain(self, make_inputs):
        """The operator has no rule for it."""
        query, *rest = (x.float() for x in make_inputs(9)[:3])

        def slope(query):
            return torch.func.jvp(lambda q: nala_attention(q, *rest).sum(), (query,), (query,))[1]

        torch.testing.assert_close(torch.compile(slope, backend="eager")(query), slope(query))

    def test_a_graph_of_the_backward_pass_alone(self, make_inputs):
        inputs = make_inputs(70, dtype=torch.float32)
        found = []
        with torch._dynamo.config.patch(compiled_autograd=True):
            for go in (torch.Tensor.backward, torch.compile(lambda loss: loss.backward(), backend="aot_eager")):
                leaves = [x.clone().requires_grad_() for x in inputs[:3]]
                go(nala_attention(*leaves, rope=inputs.rope, backend="native").square().sum())
                found.append([leaf.grad for leaf in leaves])
        assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))

    def test_a_learned_rope_is_plain(self, make_inputs):
        inputs = make_inputs(9)
        rope = tuple(table.clone().requires_grad_() for table in inputs.rope)
        compiled = torch.compile(lambda *a: nala_attention(*a[:3], rope=a[3]), backend="eager", fullgraph=True)
        compiled(*inputs[:3], rope).sum().backward()
        assert all(table.grad.abs().sum() > 0 for table in rope)
