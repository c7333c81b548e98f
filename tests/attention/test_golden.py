"""NaLa against outputs and gradients of the authors' released code, in float64."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nala_platform.attention import nala_attention

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("backend", ["reference", "plain", "auto"])
@pytest.mark.parametrize("case", ["split_rope", "split", "cosine"])
@pytest.mark.parametrize("name", ["attention_1x1_d8", "attention_5x7_d16"])
def test_matches_released_code(name, case, backend):
    golden = load_file(GOLDEN / f"{name}.safetensors")
    query, key, value = (golden[part].requires_grad_() for part in "qkv")
    out = nala_attention(
        query,
        key,
        value,
        direction="cosine" if case == "cosine" else "split",
        rope=(golden["rope_cos"], golden["rope_sin"]) if case == "split_rope" else None,
        backend=backend,
    )
    out.backward(golden["grad_out"])
    for ours, theirs in ((out, "out"), (query.grad, "grad_q"), (key.grad, "grad_k"), (value.grad, "grad_v")):
        torch.testing.assert_close(ours, golden[f"{case}.{theirs}"], rtol=0, atol=1e-9)
