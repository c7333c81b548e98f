"""Trees of pairs, as they are published."""

import numpy as np
import pytest
from PIL import Image

from nala_platform.data.images.pairs import shrunk


@pytest.fixture
def both(save, noise):
    """``both(large, small, scale, size, seed)``: writes a picture of noise and its reduction; gives the two arrays."""

    def write(large, small, scale, size=(61, 83), seed=0):
        pixels = noise(*size, seed)
        height, width = (edge // scale * scale for edge in size)
        reduced = np.asarray(shrunk(Image.fromarray(pixels[:height, :width]), scale))
        save(pixels, large)
        save(reduced, small)
        return pixels[:height, :width], reduced

    return write


@pytest.fixture
def div2k(tmp_path, both):
    """DIV2K as its archives unpack, x4 and x3: 3 pictures to train, 2 to validate; and 2 of Flickr2K."""
    root = tmp_path / "sr"
    for scale in (4, 3):
        for part, numbers in (("train", (1, 2, 3)), ("valid", (801, 802))):
            for i in numbers:
                lr = root / "DIV2K" / f"DIV2K_{part}_LR_bicubic" / f"X{scale}" / f"{i:04d}x{scale}.png"
                both(root / "DIV2K" / f"DIV2K_{part}_HR" / f"{i:04d}.png", lr, scale, (72, 96), i)
        for i in (1, 2):
            lr = root / "Flickr2K" / "Flickr2K_LR_bicubic" / f"X{scale}" / f"{i:06d}x{scale}.png"
            both(root / "Flickr2K" / "Flickr2K_HR" / f"{i:06d}.png", lr, scale, (48, 60), 10 + i)
    return root
