"""Compiled and exported networks agree with eager ones."""

import pytest
import torch
from torch.export import Dim

from nala_platform.models.segmenter import Segmenter
from nala_platform.models.vision import nalaformer_nano


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    torch.manual_seed(0)


NETWORKS = {
    "default": lambda: nalaformer_nano(num_classes=5),
    "all nala, learned": lambda: nalaformer_nano(num_classes=5, attention="nala", learn_alpha=True),
    "segmenter": lambda: Segmenter(num_classes=3),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_export(make):
    model, image = make().eval(), torch.randn(2, 3, 33, 50)
    exported = torch.export.export(model, (image,)).module()
    torch.testing.assert_close(exported(image), model(image))


def test_export_with_free_batch_and_sides():
    model = nalaformer_nano(num_classes=5).eval()
    free = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC},)
    exported = torch.export.export(model, (torch.randn(2, 3, 64, 96),), dynamic_shapes=free).module()
    for shape in ((3, 3, 33, 70), (1, 3, 100, 41)):
        image = torch.randn(shape)
        torch.testing.assert_close(exported(image), model(image))


def compiled_against_eager(make, backend):
    model, image = make(), torch.randn(2, 3, 40, 48)
    results = []
    for network in (model, torch.compile(model, fullgraph=True, backend=backend)):
        model.zero_grad()
        out = network(image)
        out.square().sum().backward()
        # All in one vector: a bias before BN has no true gradient, and alone it would be compared by its rounding.
        results.append((out.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])))
    (out, grad), (compiled_out, compiled_grad) = results
    torch.testing.assert_close(compiled_out, out, rtol=1e-4, atol=1e-4)
    assert (compiled_grad - grad).norm() < 1e-3 * grad.norm()


# What inductor makes code of has been traced too: one network of each is enough, and the others are a campaign.
def by_cost(name, *marks):
    """The networks by name: ``name`` with the marks, the others a campaign."""
    return [pytest.param(each, marks=marks if each == name else pytest.mark.campaign) for each in NETWORKS]


@pytest.mark.parametrize("name", by_cost("default"))
def test_compile_in_one_graph(name):
    compiled_against_eager(NETWORKS[name], "aot_eager")


@pytest.mark.parametrize("name", by_cost("default", pytest.mark.slow))
def test_compile_in_one_graph_with_the_default_backend(name):
    compiled_against_eager(NETWORKS[name], "inductor")
