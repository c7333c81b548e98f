"""Small trees of real files, in the formats that people have."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent / "images"))


def make_noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save_array(array, path, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(array)).save(path, **options)
    return path


@pytest.fixture
def noise():
    """``noise(height, width, seed)``: a random RGB picture ``(height, width, 3)``."""
    return make_noise


@pytest.fixture
def save():
    """``save(array, path, **options)``: writes a picture file, with its folders."""
    return save_array


@pytest.fixture
def class_tree(tmp_path):
    """Class folders cat, dog with pictures of several sizes: train 8 each, val 3 each."""
    root, sizes = tmp_path / "classes", [(30, 50), (33, 33), (64, 48), (20, 90)]
    for split, count in (("train", 8), ("val", 3)):
        for label, name in enumerate(("cat", "dog")):
            for i in range(count):
                save_array(make_noise(*sizes[i % 4], seed=100 * label + i), root / split / name / f"{i:02d}.png")
    return root


@pytest.fixture
def mask_tree(tmp_path):
    """Images with masks of 0, 1, 2 and 255: train 6, val 3; odd sizes."""
    root, sizes = tmp_path / "masks", [(30, 50), (33, 33), (47, 61)]
    for split, count in (("train", 6), ("val", 3)):
        for i in range(count):
            height, width = sizes[i % 3]
            mask = np.random.default_rng(i).choice(np.array([0, 1, 2, 255], np.uint8), (height, width))
            save_array(make_noise(height, width, i), root / "images" / split / f"{i:02d}.png")
            save_array(mask, root / "annotations" / split / f"{i:02d}.png")
    return root
