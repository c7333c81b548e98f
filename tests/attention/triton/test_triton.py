"""The Triton backend. Its values are checked in Triton's interpreter, which reads TRITON_INTERPRET when triton is first
imported: the checks below marked ``interpreted`` run in a process of their own, started by the first test."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nala_platform.attention import nala_attention
from nala_platform.attention.signature import Options
from nala_platform.attention.triton.form import triton_form
from nala_platform.errors import UserError

INSIDE = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INSIDE, reason="runs in the process of test_in_the_interpreter")
outside = pytest.mark.skipif(INSIDE, reason="starts the process of the interpreted tests, or needs none")

LOW, HIGH = torch.tensor([0.6, 1.5]), torch.tensor([2.0, 4.5])
PLAIN = dict(  # the defaults, and an eps at which outputs stay of the values' order
    alpha_range=(1.5, 4.5), alpha_gate="tanh", key_power=3.0, direction="split", rope=None, is_causal=False,
    key_padding_mask=None, eps=1e-2,
)  # fmt: skip


def attention(query, key, value, *, backend, **options):
    options = {**PLAIN, **options}
    if backend == "triton":
        return triton_form(query, key, value, Options(**options))
    return nala_attention(query, key, value, backend=backend, **options)


def run_here(*arguments, **environment):
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-rf", "-p", "no:cacheprovider", __file__, *arguments]
    root = Path(__file__).parents[3]
    return subprocess.run(
        command, env={**os.environ, **environment}, cwd=root, capture_output=True, text=True, timeout=3000
    )


@outside
@pytest.mark.parametrize(
    "which",
    [pytest.param("not campaign", marks=pytest.mark.slow), pytest.param("campaign", marks=pytest.mark.campaign)],
)
def test_in_the_interpreter(which):
    result = run_here("-m", which, TRITON_INTERPRET="1")
    assert result.returncode == 0, result.stdout[-6000:]
    assert " passed" in result.stdout


@outside
def test_importing_attention_needs_no_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from nala_platform.attention.signature import Options\n"
        "from nala_platform.attention.triton.form import triton_form\n"
        "x = torch.zeros(1, 1, 4, 16)\n"
        "try: triton_form(x, x, x, Options((1.5, 4.5), 'tanh', 3.0, 'split', None, False, None, 1e-6))\n"
        "except ValueError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "needs the package triton, which is not installed" in result.stdout, result.stderr


@outside
def test_it_says_where_it_cannot_run():
    x = torch.zeros(1, 1, 4, 16)
    with pytest.raises(UserError, match=r"needs a CUDA device, got tensors on cpu; backend='chunked' runs here"):
        attention(x, x, x, backend="triton")
    with pytest.raises(UserError, match="takes no float64; backend='chunked' does"):
        attention(x.double(), x.double(), x.double(), backend="triton")
    with pytest.raises(UserError, match="head sizes up to 128, got D=200"):
        attention(*(torch.zeros(1, 1, 4, 200),) * 3, backend="triton")
    with pytest.raises(UserError, match="no gradients of rope tables"):
        attention(x, x, x, rope=(torch.zeros(4, 16), torch.zeros(4, 16, requires_grad=True)), backend="triton")


def assert_equals_reference(make_inputs, monkeypatch, *, N, programs=528, dtype=torch.float32, rope=False, mask=False,
                            M=None, B=1, D=8, E=5, **options):  # fmt: skip
    """Values and gradients against the quadratic definition in float64 on the same inputs.

    Bounds, of the largest entry: float32 2e-5, for low and high 2e-4 of the larger one's, being sums that cancel; half
    precision 1.02 steps of its dtype, since the interpreter, unlike a card, cuts bfloat16 off where it should round.
    """
    from nala_platform.attention.triton import launch

    monkeypatch.setattr(launch, "PROGRAMS", programs)
    inputs = make_inputs(N, M=M, B=B, H=2, D=D, E=E, dtype=dtype)
    angles = 3 * torch.rand(N, D, generator=torch.Generator().manual_seed(2))
    options |= {"rope": (angles.cos(), (angles + 0.3).sin()) if rope else None}
    options |= {"key_padding_mask": inputs.mask if mask else None}
    weight = torch.randn(B, 2, N, E, generator=torch.Generator().manual_seed(3)).to(dtype)

    def results(backend, wide):
        leaves = [x.detach().to(wide or x.dtype).requires_grad_() for x in (*inputs[:3], LOW, HIGH)]
        out = attention(*leaves[:3], alpha_range=tuple(leaves[3:]), backend=backend, **options)
        return out, *torch.autograd.grad(out, leaves, weight.to(out.dtype))

    names = ("out", "query", "key", "value", "low", "high")
    all_ours, all_theirs = results("triton", None), results("reference", torch.float64)
    largest = [theirs.abs().max().item() for theirs in all_theirs]
    largest[4:] = [max(largest[4:])] * 2
    for name, ours, theirs, size in zip(names, all_ours, all_theirs, largest, strict=True):
        bound = size * max(1.02 * torch.finfo(ours.dtype).eps, 2e-4 if name in ("low", "high") else 2e-5)
        off = (ours.double() - theirs).abs().max().item()
        assert off <= bound, f"{name} is {off} off, of at most {bound}"


CASES = [
    dict(N=70),
    dict(N=1, rope=True, is_causal=True),
    dict(N=33, B=2, mask=True, rope=True, direction="cosine", programs=1),
    dict(N=40, alpha_gate="sigmoid", key_power=1.0, rope=True),
    dict(N=65, M=9, D=13, E=20, mask=True, key_power=4),
    dict(N=9, D=66, E=40, rope=True),
    dict(N=3, M=65, D=32, E=16, key_power=0.7, direction="cosine", alpha_gate="sigmoid"),
    dict(N=70, is_causal=True, programs=1, key_power=2),
    dict(N=70, is_causal=True, rope=True, programs=528),
    dict(N=70, B=2, is_causal=True, rope=True, mask=True, direction="cosine", programs=8, key_power=2.5),
    dict(N=63, is_causal=True, mask=True, alpha_gate="sigmoid", programs=4, dtype=torch.bfloat16, D=16, E=16),
    dict(N=65, rope=True, dtype=torch.bfloat16),
    dict(N=65, is_causal=True, rope=True, dtype=torch.float16, direction="cosine"),
]


@interpreted
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_equals_the_reference(make_inputs, monkeypatch, case):
    assert_equals_reference(make_inputs, monkeypatch, **case)


@interpreted
@pytest.mark.campaign
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("programs", [1, 528])
@pytest.mark.parametrize(("rope", "mask", "is_causal"), list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize(("direction", "alpha_gate", "key_power"), [("split", "tanh", 3.0), ("cosine", "sigmoid", 1.5)])
def test_it_equals_the_reference_in_all_options(
    make_inputs, monkeypatch, direction, alpha_gate, key_power, rope, mask, is_causal, programs, dtype
):
    assert_equals_reference(
        make_inputs, monkeypatch, N=70, programs=programs, dtype=dtype, rope=rope, mask=mask, direction=direction,
        alpha_gate=alpha_gate, key_power=key_power, is_causal=is_causal, B=2,
    )  # fmt: skip


@interpreted
@pytest.mark.campaign
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("D", "E"), [(16, 16), (48, 48), (64, 64), (128, 128), (128, 7), (17, 100)])
@pytest.mark.parametrize("N", [1, 63, 65, 200])
def test_it_equals_the_reference_at_all_sizes(make_inputs, monkeypatch, N, D, E, is_causal):
    assert_equals_reference(make_inputs, monkeypatch, N=N, D=D, E=E, is_causal=is_causal, rope=D % 2 == 0, programs=4)


@interpreted
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("q_scale", "k_scale"), [(1e3, 1e-4), (1e-4, 1e3)])
def test_half_precision_at_extreme_scales(make_inputs, dtype, q_scale, k_scale, is_causal):
    inputs = make_inputs(33, B=1, H=2, D=16, E=4)
    leaves = [
        (scale * x).to(dtype).requires_grad_() for scale, x in zip((q_scale, k_scale, 1), inputs[:3], strict=True)
    ]
    bounds = [torch.full((2,), bound, requires_grad=True) for bound in (0.5, 2.0)]
    options = {"alpha_gate": "sigmoid", "is_causal": is_causal, "eps": 1e-6}
    out = attention(*leaves, alpha_range=tuple(bounds), backend="triton", **options)
    out.float().square().sum().backward()
    assert all(x.isfinite().all() for x in (out, *(leaf.grad for leaf in (*leaves, *bounds))))
    exact = attention(*(x.double() for x in leaves), alpha_range=(0.5, 2.0), backend="reference", **options)
    torch.testing.assert_close(out.double(), exact, rtol=1.02 * torch.finfo(dtype).eps, atol=2e-5)


@interpreted
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_zero_tokens_and_what_is_masked(make_inputs, direction):
    query, key, value, rope, mask = make_inputs(35, B=1, H=2, D=8, E=4, dtype=torch.float32)
    query[:, :, 1], key[:, :, 2], value[:, :, 3], query[:, 1], query[..., 0] = 0, 0, 0, 0, 0
    key[:, :, mask[0]], value[:, :, mask[0]] = float("nan"), float("inf")
    leaves = [x.requires_grad_() for x in (query, key, value)]
    rope = tuple(table.float() for table in rope)
    out = attention(
        *leaves, alpha_range=(0.5, 2.0), direction=direction, rope=rope, key_padding_mask=mask, backend="triton"
    )
    out.square().sum().backward()
    assert all(x.isfinite().all() for x in (out, *(leaf.grad for leaf in leaves)))
    assert out[:, :, 1].abs().max() == out[:, 1].abs().max() == query.grad[..., 0].abs().max() == 0
    assert key.grad[:, :, mask[0]].abs().max() == value.grad[:, :, mask[0]].abs().max() == 0
    everything = attention(*leaves, key_padding_mask=torch.ones_like(mask), backend="triton")
    assert everything.abs().max() == 0


@interpreted
def test_views_of_one_projection_and_an_expanded_gradient(make_inputs):
    joint = torch.randn(2, 35, 3, 2, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (ours,), (theirs,) = (
        torch.autograd.grad(attention(*joint.permute(2, 0, 3, 1, 4), is_causal=True, backend=name).sum(), joint)
        for name in ("triton", "reference")
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * theirs.abs().max().item())


@interpreted
@pytest.mark.parametrize("is_causal", [False, True])
def test_backward_keeps_the_inputs_and_at_most_one_state_a_head(make_inputs, is_causal):
    leaves = [x.requires_grad_() for x in make_inputs(64, B=1, H=2, D=8, E=4, dtype=torch.float32)[:3]]
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.setdefault(x.data_ptr(), x), lambda x: x):
        attention(*leaves, is_causal=is_causal, backend="triton")
    for leaf in leaves:
        kept.pop(leaf.data_ptr())
    bounds, state = 4, 2 * 2 * 8 * (4 + 1)
    assert sum(x.numel() for x in kept.values()) == bounds + (0 if is_causal else state)


@interpreted
def test_second_derivatives(make_inputs):
    leaves = [x.float().requires_grad_() for x in make_inputs(7, B=1, H=2, D=8, E=4)[:3]]

    def second(backend):
        out = attention(*leaves, is_causal=True, alpha_range=(LOW, HIGH), backend=backend)
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), leaves)

    for ours, theirs in zip(second("triton"), second("reference"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * theirs.abs().max().item())


@outside
@pytest.mark.campaign
@pytest.mark.parametrize("form", ["whole", "causal"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("size", [16, 64, 128])
def test_all_kernels_compile_for_an_h200_and_fit_its_shared_memory(size, dtype, form):
    script = Path(__file__).with_name("compile_triton.py")
    result = subprocess.run([sys.executable, script, str(size), dtype, form], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    print(result.stdout)
    shared = {line.split()[0]: int(line.split()[1]) for line in result.stdout.splitlines()}
    expected = {"key_sums", "outputs", "query_gradients", "query_sums", "key_gradients"}
    assert set(shared) == expected | ({"exclusive_scan"} if form == "causal" else set())
    assert max(shared.values()) <= 227 * 1024
