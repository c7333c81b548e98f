"""Vision networks as clients of torch see them: torch.jit.trace, ONNX, torch.fx and torch.func."""

import copy
import io

import pytest
import timm
import torch
from timm.models import FeatureHookNet, create_feature_extractor
from torch.autograd.functional import jacobian
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, stack_module_state, vmap
from torchvision.models import feature_extraction

from nala_platform.models.segmenter import Segmenter
from nala_platform.models.upscaler import Upscaler
from nala_platform.models.vision import nalaformer_nano

NETWORKS = {
    "released": lambda: nalaformer_nano(num_classes=3),
    "all nala": lambda: nalaformer_nano(num_classes=3, attention="nala", learn_alpha=True, direction="cosine"),
    "all relu": lambda: nalaformer_nano(num_classes=3, attention="relu"),
    "dilated": lambda: nalaformer_nano(num_classes=3, output_stride=8),
    "upscaler": Upscaler,
    "segmenter": Segmenter,
    "upernet": lambda: Segmenter(decoder="upernet"),
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=NETWORKS)
def network(request):
    return NETWORKS[request.param]().eval()


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of torch's own group norm
def test_a_trace_holds_for_other_sizes_once_saved(network):
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(network, torch.randn(2, 3, 33, 50)), file)
    file.seek(0)
    loaded = torch.jit.load(file)
    for shape in ((2, 3, 33, 50), (1, 3, 64, 96), (3, 3, 70, 41)):
        image = torch.randn(shape)
        close(loaded(image), network(image))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("network", [name for name in NETWORKS if name != "upernet"], indirect=True)  # it pools to 3x3
def test_onnx_export(network):
    """Every operator has its ONNX twin; the exporter's last step needs the package onnx, running it onnxruntime."""
    axes = {"x": {0: "batch", 2: "height", 3: "width"}}
    file, image = io.BytesIO(), torch.randn(1, 3, 64, 64)
    try:
        torch.onnx.export(network, (image,), file, dynamo=False, input_names=["x"], dynamic_axes=axes)
    except Exception as error:
        if "Module onnx is not installed" not in str(error):
            raise
        return  # the graph was made and converted
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(file.getvalue())
    for shape in ((1, 3, 64, 64), (2, 3, 70, 41)):
        image = torch.randn(shape)
        (found,) = session.run(None, {"x": image.numpy()})
        close(torch.from_numpy(found), network(image))


class TestFX:
    @pytest.mark.parametrize("training", [False, True])
    def test_symbolic_trace(self, network, training):
        network.train(training)
        graph = torch.fx.symbolic_trace(copy.deepcopy(network))
        for shape in ((2, 3, 64, 64), (2, 3, 40, 72)):
            image, results = torch.randn(shape), []
            for function in (graph, network):
                torch.manual_seed(1)  # of dropout
                results.append(function(image))
            close(*results)

    def test_timms_fx_features(self):
        torch.manual_seed(3)
        model = timm.create_model("nalaformer_nano", features_only=True, feature_cls="fx", out_indices=(0, 2)).eval()
        torch.manual_seed(3)
        whole = timm.create_model("nalaformer_nano").eval()
        assert model.feature_info.channels() == [16, 64]
        image = torch.randn(2, 3, 40, 72)
        expected = whole.forward_intermediates(image, indices=[0, 2], intermediates_only=True)
        for found, right in zip(model(image), expected, strict=True):
            assert torch.equal(found, right)

    @pytest.mark.parametrize("extract", [create_feature_extractor, feature_extraction.create_feature_extractor])
    def test_feature_extractors(self, extract):
        model = nalaformer_nano(drop_path_rate=0.1).eval()
        nodes = {"layers.1.blocks.0": "second", "layers.2.blocks.0.attn": "mixer", "head": "logits"}
        image, kept = torch.randn(2, 3, 48, 40), {}
        hooks = [
            model.get_submodule(node).register_forward_hook(lambda m, i, out, name=name: kept.update({name: out}))
            for node, name in nodes.items()
        ]
        model(image)
        for hook in hooks:
            hook.remove()
        found = extract(model, return_nodes=nodes)(image)
        assert {name: torch.equal(found[name], kept[name]) for name in nodes.values()} == dict.fromkeys(kept, True)

    def test_timms_options_of_features(self):
        model = timm.create_model("nalaformer_nano", features_only=True, feature_cfg={"feature_cls": "hook"})
        assert isinstance(model, FeatureHookNet)


class TestFunc:
    """In double precision; what is mapped equals the loop."""

    @pytest.fixture
    def model(self):
        return nalaformer_nano(num_classes=3).eval().double()

    @pytest.fixture
    def images(self):
        return torch.randn(3, 3, 20, 33, dtype=torch.float64)

    def test_an_ensemble(self, model, images):
        models = [model, nalaformer_nano(num_classes=3).eval().double()]
        parameters, buffers = stack_module_state(models)
        found = vmap(lambda p, b: functional_call(model, (p, b), (images,)))(parameters, buffers)
        torch.testing.assert_close(found, torch.stack([each(images) for each in models]), rtol=1e-8, atol=1e-8)

    def test_gradients_of_each_sample(self, model, images):
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def loss(parameters, image):
            return functional_call(model, parameters, (image[None],)).square().sum()

        found = vmap(grad(loss), in_dims=(None, 0))(parameters, images)
        for index, image in enumerate(images):
            expected = torch.autograd.grad(model(image[None]).square().sum(), [*model.parameters()])
            for one, right in zip(found.values(), expected, strict=True):
                torch.testing.assert_close(one[index], right, rtol=1e-6, atol=1e-9)

    def test_jacobians(self, model):
        image = torch.randn(1, 3, 5, 4, dtype=torch.float64)
        expected = jacobian(model, image)
        for found in (
            jacrev(model)(image),
            jacfwd(model)(image),
            jacobian(model, image, vectorize=True),
            jacobian(model, image, vectorize=True, strategy="forward-mode"),
        ):
            torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)

    def test_hessian(self, model):
        """It is symmetric, and the derivative of the gradient."""
        image = torch.randn(1, 3, 3, 2, dtype=torch.float64)

        def loss(image):
            return 100 * model(image).square().sum()

        found = hessian(loss)(image).view(18, 18)
        torch.testing.assert_close(found, found.T, rtol=1e-6, atol=1e-8)
        step = 1e-6 * torch.randn_like(image)
        expected = (grad(loss)(image + step) - grad(loss)(image - step)).flatten() / 2
        torch.testing.assert_close(found @ step.flatten(), expected, rtol=1e-3, atol=1e-11)

    def test_an_upscaler(self):
        model, images = Upscaler().eval().double(), torch.randn(2, 1, 3, 5, 6, dtype=torch.float64)
        torch.nn.init.normal_(model.to_pixels.weight)
        torch.testing.assert_close(vmap(model)(images), torch.stack([model(image) for image in images]))
