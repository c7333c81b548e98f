import pytest
import torch
import torch.nn.functional as F

from nala_platform.nn.block import Block
from nala_platform.nn.feed_forward import ConvFeedForward
from nala_platform.nn.mixer import GatedAttention
from nala_platform.nn.rope import rotary_tables

CPU = torch.device("cpu")


def block(**options):
    torch.manual_seed(0)
    return Block(8, GatedAttention(8, 2), ConvFeedForward(8, 12), **options).double()


def depthwise(x_BYXC, conv):
    padded = F.pad(x_BYXC, (0, 0, 1, 1, 1, 1))
    height, width = x_BYXC.shape[1:3]
    return conv.bias + sum(
        padded[:, i : i + height, j : j + width] * conv.weight[:, 0, i, j] for i in range(3) for j in range(3)
    )


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3)])
def test_the_feed_forward_part_follows_its_equation(height, width):
    torch.manual_seed(0)
    module = ConvFeedForward(8, 12).double()
    x = torch.randn(2, height, width, 8, dtype=torch.float64)
    hidden = x @ module.fc1.weight.T + module.fc1.bias
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    expected = (hidden + depthwise(hidden, module.dwconv)) @ module.fc2.weight.T + module.fc2.bias
    torch.testing.assert_close(module(x), expected, rtol=1e-10, atol=1e-10)


def test_the_block_follows_its_equation_in_either_memory_format():
    module, rope = block(layer_scale=0.25), rotary_tables(3, 2, 4, device=CPU)
    image = torch.randn(2, 8, 3, 2, dtype=torch.float64)
    x = image.permute(0, 2, 3, 1)

    def norm(x_BYXC, layer):
        return F.layer_norm(x_BYXC, (8,), layer.weight, layer.bias, 1e-6)

    x = x + depthwise(x, module.cpe1)
    x = x + 0.25 * module.attn(norm(x, module.norm1.norm), rope)
    x = x + depthwise(x, module.cpe2)
    x = x + 0.25 * module.ffn(norm(x, module.norm2.norm))
    for layout in (torch.contiguous_format, torch.channels_last):
        out = module(image.contiguous(memory_format=layout), rope)
        torch.testing.assert_close(out, x.permute(0, 3, 1, 2), rtol=1e-10, atol=1e-10)


def test_gradcheck():
    module, rope = block(layer_scale=0.5), rotary_tables(2, 2, 4, device=CPU)
    image = torch.randn(1, 8, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda image: module(image, rope), (image,), atol=1e-5)


def test_drop_path_leaves_out_whole_branches_in_training_alone():
    module, rope = block(drop_path=0.999999), rotary_tables(2, 2, 4, device=CPU)
    image = torch.randn(1, 8, 2, 2, dtype=torch.float64)
    x = image + module.cpe1(image)
    torch.testing.assert_close(module(image, rope), x + module.cpe2(x))
    module.eval()
    assert not torch.allclose(module(image, rope), x + module.cpe2(x))
