"""Patches and whole pictures: what they show, and that (seed, epoch, index) alone decide it."""

from importlib import resources

import numpy as np
import pytest
import torch
from PIL import Image

from nala_platform.data.images.pairs import Pair, PairItems, Patch, cropped, shrunk, turned
from nala_platform.data.images.photos import FILES, HELD_OUT, PhotosData, photo_baselines, photos
from nala_platform.data.order import Draw
from nala_platform.errors import UserError


def cubic(x):
    """Keys' kernel, a = -0.5."""
    x = np.abs(x)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def weights(length, scale):
    """(length / scale, length): antialiased bicubic reduction of one axis, from its definition."""
    centre = (np.arange(length // scale)[:, None] + 0.5) * scale
    table = cubic((np.arange(length) + 0.5 - centre) / scale)
    return table / table.sum(1, keepdims=True)


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_reduction_is_the_antialiased_bicubic_filter(noise, scale):
    image = noise(12 * scale, 17 * scale)
    rows, columns = weights(12 * scale, scale), weights(17 * scale, scale)
    found = np.asarray(shrunk(Image.fromarray(image), scale)).astype(int)
    # Pillow goes along the rows first and rounds to 8 bits; the same in floats is apart at ties alone
    across = np.clip(np.floor(np.einsum("hwc,xw->hxc", image / 1.0, columns) + 0.5), 0, 255)
    stepwise = np.clip(np.floor(np.einsum("yh,hxc->yxc", rows, across) + 0.5), 0, 255)
    assert np.abs(found - stepwise).max() <= 1 and (found != stepwise).mean() < 0.01
    # and from the filter without any rounding: half a step of the second, and of the first what the weights make of it
    exact = np.clip(np.einsum("yh,hwc,xw->yxc", rows, image / 1.0, columns), 0, 255)
    bound = 0.5 + 0.5 * np.abs(rows).sum(1).max()
    assert bound < 1.2 and np.abs(found - exact).max() <= bound + 1e-4


@pytest.mark.parametrize("scale", [2, 3, 4])
@pytest.mark.parametrize("size", [(61, 83), (64, 96)])
def test_a_patch_is_cut_from_the_reduction_of_the_whole(noise, scale, size):
    large = cropped(Image.fromarray(noise(*size)), scale)
    whole = np.asarray(shrunk(large, scale))
    for box in ((0, 0, 9, 9), (3, 5, 12, 14), (whole.shape[1] - 9, whole.shape[0] - 9, whole.shape[1], whole.shape[0])):
        left, top, right, bottom = box
        assert np.array_equal(np.asarray(shrunk(large, scale, box)), whole[top:bottom, left:right])


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_large_pictures_are_cropped_to_multiples(noise, scale):
    """U4."""
    image = noise(50, 61)
    [sample] = [PairItems(lambda _: Pair("a", Image.fromarray(image)), 1, scale=scale)[Draw(0, 0)]]
    height, width = 50 // scale, 61 // scale
    assert sample["image"].shape == (3, height, width)
    assert sample["target"].shape == (3, height * scale, width * scale)
    shown = (sample["target"] * 255).round().byte().permute(1, 2, 0).numpy()
    assert np.array_equal(shown, image[: height * scale, : width * scale])
    assert sample["image"].dtype == torch.float32 and 0 <= sample["image"].min() <= sample["image"].max() <= 1


@pytest.mark.parametrize("given", [True, False])
def test_both_sides_of_a_patch_show_the_same_place_turned_alike(noise, given):
    large = Image.fromarray(noise(60, 90))
    small = shrunk(large, 3)
    items = PairItems(lambda _: Pair("a", large, small if given else None), 1, scale=3, patch=Patch(8, 200), seed=1)
    whole = torch.from_numpy(np.array(small)).permute(2, 0, 1)
    big = torch.from_numpy(np.array(large)).permute(2, 0, 1)
    found = set()
    for index in range(200):
        sample = items[Draw(index, 0)]
        image, target = ((sample[key] * 255).round().byte() for key in ("image", "target"))
        assert image.shape == (3, 8, 8) and target.shape == (3, 24, 24)
        for code in range(8):
            for row in range(13):
                for column in range(23):
                    part = whole[:, row : row + 8, column : column + 8]
                    if image[0, 0, 0] in part[0] and torch.equal(turned(part, code), image):
                        there = big[:, 3 * row : 3 * row + 24, 3 * column : 3 * column + 24]
                        assert torch.equal(turned(there, code), target)
                        found.add(code)
        if index > 30 and len(found) == 8:
            break
    assert found == set(range(8))


def test_the_eight_turns_differ():
    image = torch.arange(12).view(1, 3, 4)[:, :, :3].contiguous()
    assert len({tuple(turned(image, code).flatten().tolist()) for code in range(8)}) == 8
    assert turned(image, 4).equal(image.mT) and turned(image, 1).equal(image.flip(-1))


def test_patches_are_a_function_of_seed_epoch_and_index():
    def epoch(number, **options):
        data = PhotosData(patch=Patch(size=8, repeats=2), batch_size=4, **options)
        loader = data.train_dataloader()
        loader.sampler.set_epoch(number)
        batches = list(loader)
        return [n for b in batches for n in b["name"]], torch.cat([b["image"] for b in batches])

    torch.manual_seed(7)
    names, images = epoch(0)
    assert sorted(names) == sorted([*FILES["train"], *FILES["train"]])
    again, with_workers = epoch(0), epoch(0, num_workers=2)
    assert again[0] == with_workers[0] == names
    assert torch.equal(again[1], images) and torch.equal(with_workers[1], images)
    assert not torch.equal(epoch(1)[1], images) and not torch.equal(epoch(0, seed=1)[1], images)
    items = PhotosData(patch=Patch(size=8, repeats=2)).items("train")
    assert not torch.equal(items[Draw(0, 0)]["image"], items[Draw(1, 0)]["image"])  # two patches of one picture


def test_the_embedded_parts_share_no_photograph_but_the_quarters_held_out_for_validation():
    parts = photos()
    assert list(parts["train"]) == list(FILES["train"]) and list(parts["test"]) == list(FILES["test"])
    assert list(parts["test"]) == ["chelsea", "coffee", "flower", "camera"]
    assert list(parts["val"]) == [*FILES["val"], *(name + HELD_OUT for name in FILES["train"])]
    assert [len(images) for images in parts.values()] == [8, 10, 4]
    contents = [image.tobytes() for images in parts.values() for image in images.values()]
    files = [place for images in FILES.values() for place in images.values()]
    assert len(set(contents)) == 22 and len(set(files)) == 14 and "motorcycle_right" not in str(FILES)
    assert all(
        image.dtype == np.uint8 and image.shape[2] == 3 for images in parts.values() for image in images.values()
    )


@pytest.mark.parametrize("name", list(FILES["train"]))
def test_validation_holds_out_the_right_quarter_of_each_training_photograph(name):
    """Both parts side by side are the file, so no pixel is in both, and none is lost to any scale between them."""
    package, file = FILES["train"][name]
    with Image.open(resources.files(package) / file) as image:
        whole = np.array(image.convert("RGB"))
    left, right = photos()["train"][name], photos()["val"][name + HELD_OUT]
    assert np.array_equal(np.concatenate([left, right], axis=1), whole)
    assert left.shape[1] % 12 == 0 and 0.22 < right.shape[1] / whole.shape[1] < 0.29


def test_batches_have_the_agreed_form(tmp_path, save):
    data = PhotosData(scale=4, patch=Patch(size=8, repeats=1, tile=64), batch_size=4)
    batch = next(iter(data.train_dataloader()))
    assert set(batch) == {"image", "target", "name"}
    assert batch["image"].shape == (4, 3, 8, 8) and batch["target"].shape == (4, 3, 32, 32)
    whole, *others = data.val_dataloader()
    assert len(others) == 9
    assert whole["image"].shape == (1, 3, 106, 160) and whole["target"].shape == (1, 3, 424, 640)
    assert whole["name"] == ["china"] and whole["tile"].tolist() == [64]
    assert set(next(iter(data.predict_dataloader()))) == {"image", "name", "tile"}
    save(np.zeros((9, 9, 3), np.uint8), tmp_path / "new.png")
    [new] = PhotosData(patch=Patch(tile=64), predict_path=str(tmp_path / "new.png")).predict_dataloader()
    assert new["tile"].tolist() == [64] and new["image"].shape == (1, 3, 9, 9)
    assert "64" in data.protocol()["inference"] and data.protocol()["scale"] == 4


def test_the_linear_filter_beats_bicubic_by_a_decibel():
    scores = photo_baselines(2)
    assert scores["bicubic"]["psnr_y"] == pytest.approx(33.06, abs=0.02)
    assert 0.9 < scores["linear 7x7 filter"]["psnr_y"] - scores["bicubic"]["psnr_y"] < 1.2


def test_the_bicubic_baseline_is_pillow_s_enlargement_scored_by_hand(noise):
    from nala_platform.data.images.upscale_baselines import bicubic_baseline

    def y_psnr(one, other, border=2):
        factors = np.array([65.481, 128.553, 24.966]) / 255
        one, other = (side[border:-border, border:-border].astype(float) @ factors for side in (one, other))
        return 10 * np.log10(255**2 / np.mean((one - other) ** 2))

    large = [Image.fromarray(noise(40, 44, seed)).resize((66, 60)) for seed in range(3)]
    small = [shrunk(image, 2) for image in large]
    pairs = [Pair("a", large[0], None, 0), Pair("b", large[1], small[1], 1), Pair("c", large[2], small[2], 1)]
    found = bicubic_baseline(pairs, 2, ("one", "two"))
    psnr = [
        y_psnr(np.asarray(low.resize(image.size, Image.Resampling.BICUBIC)), np.asarray(image))
        for image, low in zip(large, small, strict=True)
    ]
    assert found["one/psnr_y"] == found["psnr_y"] == pytest.approx(psnr[0], rel=1e-6)
    assert found["two/psnr_y"] == pytest.approx((psnr[1] + psnr[2]) / 2, rel=1e-6)


def test_the_filter_finds_weights_that_made_the_picture(noise):
    """From pictures that are exactly a linear filter of their reductions, it finds that filter."""
    from nala_platform.data.images import upscale_baselines as baselines

    draw = np.random.default_rng(0)
    true = draw.normal(0, 0.02, (50, 4))
    small = Image.fromarray(noise(40, 40))
    target = baselines.apply_filter(true, small, 2)
    padded = np.pad(np.asarray(small)[..., 1] / 255, 3, mode="edge")
    direct = (padded[10:17, 5:12].ravel() * true[:-1, 2]).sum() + true[-1, 2]  # pixel (10, 5), phase (1, 0)
    assert target[21, 10, 1] == pytest.approx(direct)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 1}, "data.scale is 1"),
        ({"patch": Patch(size=200)}, "data.patch.size is 200, but x2 patches of the embedded coins have at most 144"),
    ],
)
def test_settings_that_do_not_fit_are_named(options, message):
    with pytest.raises(UserError, match=message):
        PhotosData(**options)
    with pytest.raises(UserError, match=r"data\.patch\.size is 0"):
        Patch(size=0)
    with pytest.raises(UserError, match=r"data\.patch\.tile is 32: it must be 33"):
        Patch(tile=32)
