"""How the data sets of super-resolution lie on disk: DIV2K, Flickr2K, both, and the test sets.

Shapes: S scale.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nala_platform.data.files import check_folder
from nala_platform.data.images.layouts.super_resolution_pairs import PairSource
from nala_platform.data.images.pictures import SUFFIXES, split_folder
from nala_platform.errors import UserError
from nala_platform.paths import StrPath

PairLayout = Callable[[Path | None, int], dict[str, list[PairSource]]]


def by_hand(root: Path | None, scale: int) -> dict[str, list[PairSource]]:
    """None: ``data.folders`` names each folder."""
    if root is not None:
        raise UserError(
            f"data.root is {root}, which layout folders does not read: give --data.folders.train_hr and val_hr, or "
            f"--data.folders.layout {', '.join(list(LAYOUTS)[1:])}"
        )
    return {}


def div2k(root: Path | None, scale: int) -> dict[str, list[PairSource]]:
    """DIV2K (Agustsson, Timofte 2017) as its archives unpack: 800 pictures to train, 100 to validate.

    ``DIV2K_train_HR/0001.png``, ``DIV2K_train_LR_bicubic/X4/0001x4.png``, the same with ``valid``; in ``root`` or
    ``root/DIV2K``. Its test pictures have never been given out.
    """
    home = _home(root, "DIV2K")
    return {split: [_div2k(home, name, scale)] for split, name in (("train", "train"), ("val", "valid"))}


def div2k_sub(root: Path | None, scale: int) -> dict[str, list[PairSource]]:
    """The same with the training pictures cut into sub-images, as BasicSR's script does it.

    ``DIV2K_train_HR_sub/0001_s001.png`` and ``DIV2K_train_LR_bicubic/X4_sub/0001_s001.png``.
    """
    home = _home(root, "DIV2K")
    return {"train": [_div2k(home, "train", scale, "_sub")], "val": [_div2k(home, "valid", scale)]}


def flickr2k(root: Path | None, scale: int) -> dict[str, list[PairSource]]:
    """Flickr2K (Lim et al. 2017), 2650 pictures to train.

    ``Flickr2K_HR/000001.png``, ``Flickr2K_LR_bicubic/X4/000001x4.png``, in ``root`` or ``root/Flickr2K``.
    It has no validation part: ``data.folders.val_hr`` names one.
    """
    return {"train": [_flickr2k(_home(root, "Flickr2K"), scale)]}


def df2k(root: Path | None, scale: int) -> dict[str, list[PairSource]]:
    """DF2K: the training pictures of `div2k` and `flickr2k`, 3450, and the validation pictures of DIV2K."""
    return _both(div2k(root, scale), _flickr2k(_home(root, "Flickr2K"), scale))


def df2k_sub(root: Path | None, scale: int) -> dict[str, list[PairSource]]:
    """The same cut into sub-images: `div2k_sub`, and likewise ``Flickr2K_HR_sub``, ``Flickr2K_LR_bicubic/X4_sub``."""
    return _both(div2k_sub(root, scale), _flickr2k(_home(root, "Flickr2K"), scale, "_sub"))


LAYOUTS: dict[str, PairLayout] = {
    "folders": by_hand,
    "div2k": div2k,
    "div2k_sub": div2k_sub,
    "flickr2k": flickr2k,
    "df2k": df2k,
    "df2k_sub": df2k_sub,
}
"""``data.folders.layout`` -> the splits' folders, from ``data.root`` and the scale; what has several is their union."""


class Naming(NamedTuple):
    """One of the ways in which a test set lies in its folder; ``{scale}`` stands for S."""

    large: str
    small: str
    ends: tuple[str, str] = ("", "")

    def source(self, folder: Path, scale: int) -> PairSource:
        """The folders of it."""
        large, small = (folder / name.format(scale=scale) for name in (self.large, self.small))
        return PairSource(large, small, self.ends)


NAMINGS = {
    "HR + LR_bicubic/X{scale}": Naming("HR", "LR_bicubic/X{scale}"),  # EDSR's benchmark archive
    "GTmod12 + LRbicx{scale}": Naming("GTmod12", "LRbicx{scale}"),  # BasicSR's, cropped to multiples of 12
    "image_SRF_{scale}": Naming("image_SRF_{scale}", "image_SRF_{scale}", ("_HR", "_LR")),  # SelfExSR's
}
FLAT = "large pictures alone"
# Papers call the hundred pictures of the Berkeley data by three names.
SAME = {"bsd100": "b100", "bsds100": "b100"}
# in the order of tables in papers, with the number of pictures that they were published with
USUAL = {"set5": 5, "set14": 14, "b100": 100, "urban100": 100, "manga109": 109}


def find_test_sets(given: StrPath | dict[str, StrPath], scale: int) -> dict[str, tuple[str, PairSource]]:
    """The test sets that ``data.folders.test_sets`` means: their names and, of each, its naming and its folders.

    Names are in small letters, ``bsd100`` and ``bsds100`` are ``b100``; they come as in `USUAL`, others behind.

    Args:
        given: a folder with a folder a test set in it, or one that is a test set itself; or names and their folders.
        scale: S.

    Raises:
        UserError: a folder that is missing, is none of the namings or more than one; two sets of one name.
    """
    by_name = isinstance(given, dict)
    folders = {name: _place(path) for name, path in given.items()} if by_name else _below(_place(given))
    found: dict[str, tuple[str, PairSource]] = {}
    for name, folder in folders.items():
        key = SAME.get(name.lower(), name.lower())
        if key in found:
            raise UserError(f"data.folders.test_sets: two of them are called {key}: give each its own name")
        if not key or "/" in key:
            raise UserError(f"data.folders.test_sets: {name!r} is no name for a row of the results")
        naming, source = _naming(folder, scale)
        found[key] = (naming, PairSource(source.large, source.small, source.ends, source.depth, prefix=f"{key}/"))
    order = [name for name in USUAL if name in found] + [name for name in found if name not in USUAL]
    return {name: found[name] for name in order}


def _place(path: StrPath) -> Path:
    return Path(path).expanduser().absolute()


def _below(folder: Path) -> dict[str, Path]:
    check_folder(folder, "data.folders.test_sets")
    if _has_pictures(folder) or any((folder / naming.large).is_dir() for naming in NAMINGS.values()):
        return {folder.name: folder}
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if any(path.name.startswith("image_SRF_") for path in inside):
        return {folder.name: folder}
    if not inside:
        raise UserError(f"data.folders.test_sets: {folder} holds neither test sets nor pictures ({' '.join(SUFFIXES)})")
    return {path.name: path for path in inside}


def _naming(folder: Path, scale: int) -> tuple[str, PairSource]:
    check_folder(folder, "data.folders.test_sets")
    sources = {name.format(scale=scale): naming.source(folder, scale) for name, naming in NAMINGS.items()}
    whole = {
        name: it for name, it in sources.items() if it.large.is_dir() and it.small is not None and it.small.is_dir()
    }
    if len(whole) > 1:
        raise UserError(
            f"data.folders.test_sets: {folder} has {' and '.join(whole)}: move one out, as their borders may differ"
        )
    if whole:
        return next(iter(whole.items()))
    half = next((it.large for it in sources.values() if it.large.is_dir()), None)
    if half is None and _has_pictures(folder):
        return FLAT, PairSource(folder, depth="one")
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    mend = "" if half is None else f"; to have the small ones made, give {half} as its folder"
    raise UserError(
        f"data.folders.test_sets: {folder} has none of {', '.join(sources)}, nor pictures (there: {there}){mend}"
    )


def _has_pictures(folder: Path) -> bool:
    return any(path.suffix.lower() in SUFFIXES and path.name[0] != "." for path in folder.iterdir() if path.is_file())


def _home(root: Path | None, name: str) -> Path:
    if root is None:
        raise UserError(f"data.root is missing: give --data.root the folder that {name} lies in")
    return root / name if (root / name).is_dir() else root


def _div2k(home: Path, part: str, scale: int, cut: str = "") -> PairSource:
    return _paired(home, f"DIV2K_{part}_HR{cut}", f"DIV2K_{part}_LR_bicubic", f"X{scale}{cut}")


def _flickr2k(home: Path, scale: int, cut: str = "") -> PairSource:
    return _paired(home, f"Flickr2K_HR{cut}", "Flickr2K_LR_bicubic", f"X{scale}{cut}")


def _paired(home: Path, large: str, small: str, name: str) -> PairSource:
    return PairSource(split_folder(home, large), split_folder(split_folder(home, small), name))


def _both(splits: dict[str, list[PairSource]], more: PairSource) -> dict[str, list[PairSource]]:
    return splits | {"train": [*splits["train"], more]}
