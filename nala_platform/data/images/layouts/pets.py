"""The layout ``pets``: cats and dogs cut out of their background (Parkhi et al. 2012, Oxford-IIIT Pet)."""

from pathlib import Path

from nala_platform.data.images.labels import Labels
from nala_platform.data.images.layouts.listed import listed_pairs, read_names
from nala_platform.data.images.layouts.masks import Found, inner_root
from nala_platform.data.problems import Excluded

HELD_OUT = 10  # every tenth line of trainval.txt is for validation; the list goes through the 37 breeds one by one
# a trimap's 3 is the border, which its authors left unjudged
LABELS = Labels(class_names=("background", "pet"), mapping={1: 1, 2: 0, 3: 255}, colors=((60, 60, 90), (240, 160, 40)))


def pets(root: Path, excluded: Excluded) -> Found:
    """``images/*.jpg``, ``annotations/trimaps/*.png``, ``annotations/{trainval,test}.txt``.

    ``root`` is that folder or the one that holds ``oxford-iiit-pet``. The published lists alone decide what is read, so
    images without a trimap, and the ``._`` files of macOS among the trimaps, are passed over.

    Raises:
        UserError: a folder or list is missing.
    """
    root = inner_root(root, "annotations/trimaps", "oxford-iiit-pet")
    lists = {"trainval": root / "annotations" / "trainval.txt", "test": root / "annotations" / "test.txt"}
    trainval, test = (read_names(path) for path in lists.values())
    names = {
        "train": [name for line, name in enumerate(trainval, start=1) if line % HELD_OUT],
        "val": trainval[HELD_OUT - 1 :: HELD_OUT],
        "test": test,
    }

    def places(name: str) -> tuple[Path, Path]:
        return root / "images" / f"{name}.jpg", root / "annotations" / "trimaps" / f"{name}.png"

    return Found(
        {
            split: listed_pairs(listed, places, excluded, lists["test" if split == "test" else "trainval"])
            for split, listed in names.items()
        },
        labels=LABELS,
        unlabelled=None,
        protocol={"val split": f"every {HELD_OUT}th line of trainval.txt", "test split": "test.txt"},
    )
