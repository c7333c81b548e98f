"""The C++ kernels beyond what tests/attention/test_closed_forms.py asks of every backend: threads, dtypes, building."""

import itertools
import os
import platform
import shutil
import warnings

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from nala_platform.attention import nala_attention
from nala_platform.attention.native import form, library, operator
from nala_platform.errors import UserError

KEPT_OPEN = []  # what a test builds must outlive the calls into it


@pytest.fixture
def fresh_library(monkeypatch, tmp_path):
    """Nothing is found or built yet, and the cache is an empty folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    KEPT_OPEN.append(library.library)
    for function in (library.library, library._found):
        monkeypatch.setattr(library, function.__name__, library.cache(function.__wrapped__))
    return tmp_path / "nala" / "native"


def results(inputs, *, backend="native", **options):
    leaves = [x.clone().requires_grad_() for x in inputs[:3]]
    out = nala_attention(*leaves, rope=inputs.rope, key_padding_mask=inputs.mask, backend=backend, **options)
    return out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_the_number_of_threads_changes_no_bit(make_inputs, direction, is_causal):
    inputs = make_inputs(5000, B=1, H=3, D=16, E=24, dtype=torch.float32)
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(results(inputs, direction=direction, is_causal=is_causal))
    for one, two, five in zip(*found, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, five)


@pytest.mark.parametrize("is_causal", [False, True])
def test_many_spans(make_inputs, is_causal):
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
    def test_auto_takes_it(self, make_inputs):
        inputs = make_inputs(9)
        assert form.is_at_hand(*inputs[:3], nala_options())
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


def nala_options():
    from nala_platform.attention.signature import Options

    return Options((1.5, 4.5), "tanh", 3.0, "split", None, False, None, 1e-6)


@pytest.mark.usefixtures("fresh_library")
class TestBuilding:
    def test_without_a_compiler(self, make_inputs, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        inputs = make_inputs(9)
        with pytest.raises(UserError, match=r"needs a C\+\+ compiler on the path, or named by CXX"):
            nala_attention(*inputs[:3], backend="native")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing to complain of
            out = nala_attention(*inputs[:3])
        assert torch.equal(out, nala_attention(*inputs[:3], backend="chunked"))

    def test_a_compiler_that_fails(self, fresh_library, make_inputs, monkeypatch):
        monkeypatch.setenv("CXX", "false")
        inputs = make_inputs(9)
        with pytest.raises(UserError, match=r"could not be compiled by .*false: exit code 1; backend='chunked'"):
            nala_attention(*inputs[:3], backend="native")
        with pytest.warns(UserWarning, match=r"could not be compiled.*it is used now"):
            out = nala_attention(*inputs[:3])
        assert torch.equal(out, nala_attention(*inputs[:3], backend="chunked"))
        assert [*fresh_library.iterdir()] == []

    def test_what_cannot_be_loaded(self, make_inputs, monkeypatch):
        monkeypatch.setattr(library, "_compiled", lambda command: None)  # leaves an empty file
        with pytest.raises(UserError, match=r"could not be built or loaded: .*file too short; backend='chunked'"):
            nala_attention(*make_inputs(9)[:3], backend="native")

    def test_it_is_built_once(self, fresh_library, make_inputs, monkeypatch):
        kernels = library.library(True, False)
        KEPT_OPEN.append(kernels)
        (built,) = fresh_library.iterdir()
        monkeypatch.setattr(library, "_compiled", None)  # it would be called
        assert library.library.__wrapped__(True, False)._name == str(built)

    def test_another_compiler_or_processor_is_another_library(self, monkeypatch):
        compiler = library.command()
        build = (*compiler, *library.FLAGS, "nala.cpp")
        before = library._fingerprint(compiler, build)
        assert library._fingerprint(compiler, build) == before
        assert library._fingerprint(compiler, (*compiler, "-DX", *build[1:])) != before
        monkeypatch.setattr(library, "processor", lambda: "another")
        assert library._fingerprint(compiler, build) != before

    def test_what_is_damaged_is_built_again(self, fresh_library, make_inputs, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(library, "_compiled", lambda build: None)  # leaves an empty file
            with pytest.raises(UserError, match="file too short"):
                library.library(True, False)
        (built,) = fresh_library.iterdir()
        assert built.stat().st_size == 0
        killed = fresh_library / "killed.part"
        killed.write_text("")
        os.utime(killed, (0, 0))
        inputs = make_inputs(9)
        out = nala_attention(*inputs[:3], backend="native")
        KEPT_OPEN.append(library.library)
        torch.testing.assert_close(out, nala_attention(*inputs[:3], backend="reference"))
        assert [*fresh_library.iterdir()] == [built]

    def test_a_compiler_with_options(self, tmp_path, monkeypatch):
        """The options are kept, and a path may have spaces."""
        spaced = tmp_path / "a folder" / "c++"
        spaced.parent.mkdir()
        spaced.symlink_to(shutil.which("c++") or shutil.which("g++"))
        monkeypatch.setenv("CXX", f"'{spaced}' -DA -DB")
        assert library.command() == (str(spaced), "-DA", "-DB")
        monkeypatch.setenv("CXX", str(spaced))
        assert library.command() == (str(spaced),)

    @pytest.mark.parametrize("kind", ["no quotation", "no program", "no text"])
    def test_a_compiler_without_sense(self, make_inputs, monkeypatch, tmp_path, kind):
        program = tmp_path / "compiler"
        program.write_bytes(b"junk" if kind == "no program" else b"#!/bin/sh\nprintf '\\377\\376 no' >&2\nexit 1\n")
        program.chmod(0o755)
        monkeypatch.setenv("CXX", "c++ '" if kind == "no quotation" else str(program))
        inputs = make_inputs(9)
        with pytest.raises(UserError, match="backend='chunked' needs no compiler"):
            nala_attention(*inputs[:3], backend="native")
        with pytest.warns(UserWarning, match="it is used now"):
            out = nala_attention(*inputs[:3])
        assert torch.equal(out, nala_attention(*inputs[:3], backend="chunked"))

    def test_a_home_that_cannot_be_written(self, make_inputs, monkeypatch, tmp_path):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        inputs = make_inputs(9)
        out = nala_attention(*inputs[:3], backend="native")
        KEPT_OPEN.append(library.library)
        torch.testing.assert_close(out, nala_attention(*inputs[:3], backend="reference"))

    @pytest.mark.slow
    @pytest.mark.skipif(platform.machine() != "x86_64", reason="names instruction sets of x86-64")
    @pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3"])
    def test_older_processors(self, make_inputs, monkeypatch, processor):
        """Vectors of 16 and of 32 bytes."""
        monkeypatch.setattr(library, "own_processor", lambda compiler: (f"-march={processor}",))
        bounds = {torch.float64: 1e-11, torch.float32: 5e-6}
        for (dtype, bound), is_causal in itertools.product(bounds.items(), (False, True)):
            inputs = make_inputs(130, D=18, E=7, dtype=dtype)
            wide = inputs._replace(**{name: getattr(inputs, name).double() for name in ("query", "key", "value")})
            ours = results(inputs, direction="cosine", is_causal=is_causal)
            KEPT_OPEN.append(library.library)
            theirs = results(wide, direction="cosine", is_causal=is_causal, backend="reference")
            for x, y in zip(ours, theirs, strict=True):
                assert (x.double() - y).norm() <= bound * y.norm()
