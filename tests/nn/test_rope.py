from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nala_platform.errors import UserError
from nala_platform.nn.rope import rotary_tables

GOLDEN = Path(__file__).parents[1] / "golden"
CPU = torch.device("cpu")


def test_tables_match_the_released_ones():
    golden = load_file(GOLDEN / "attention_5x7_d16.safetensors")
    cos, sin = rotary_tables(5, 7, 16, device=CPU)
    assert cos.dtype == sin.dtype == torch.float32
    torch.testing.assert_close(cos.double(), golden["rope_cos"], rtol=0, atol=2e-6)
    torch.testing.assert_close(sin.double(), golden["rope_sin"], rtol=0, atol=2e-6)


def test_frequencies_match_the_released_buffer():
    angle = load_file(GOLDEN / "nalaformer_tiny_model.safetensors")["state.layers.0.RoPE.angle"]
    cos, sin = rotary_tables(2, 2, 16, device=CPU)
    row_one, column_one = 2, 1
    for half, token in ((slice(0, 8), row_one), (slice(8, 16), column_one)):
        torch.testing.assert_close(torch.atan2(sin[token, half], cos[token, half]), angle)


@pytest.mark.parametrize(("height", "width", "head_size"), [(1, 1, 4), (3, 2, 8), (1, 5, 12), (9, 1, 64)])
def test_each_token_turns_by_its_row_and_its_column(height, width, head_size):
    cos, sin = rotary_tables(height, width, head_size, device=CPU)
    quarter = head_size // 4
    for y in range(height):
        for x in range(width):
            for d in range(head_size):
                pair = (d % (head_size // 2)) // 2
                step = pair / (quarter - 1) if quarter > 1 else 0.0
                angle = torch.tensor((y if d < head_size // 2 else x) * 10000.0**-step)
                torch.testing.assert_close(cos[y * width + x, d], angle.cos(), rtol=0, atol=1e-5)
                torch.testing.assert_close(sin[y * width + x, d], angle.sin(), rtol=0, atol=1e-5)


def test_a_head_size_that_four_does_not_divide_is_refused():
    with pytest.raises(UserError, match=r"multiple of 4.*got 6"):
        rotary_tables(2, 2, 6, device=CPU)
