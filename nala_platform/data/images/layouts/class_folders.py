"""Pictures in a folder a class.

Shapes: N pictures.
"""

import os
from pathlib import Path

import numpy as np

from nala_platform.data.files import walk
from nala_platform.data.images.layouts.listing import LabelledPart, Listing, PictureFiles
from nala_platform.data.images.pictures import SUFFIXES, split_folder
from nala_platform.data.names import clash, composed
from nala_platform.data.problems import Excluded, Problem, report
from nala_platform.errors import UserError

SORTED = "the sorted names of the folders in train"


def class_folders(root: Path, excluded: Excluded) -> Listing:
    """``root/train/<class>/…`` and ``root/val/<class>/…``, with ``root/test/<class>/…`` where there is one.

    The index of a class is its place in the sorted names of train's folders. Pictures in ``test`` that stand in no
    folder have no class and are for prediction.
    """
    files = {split: class_files(split_folder(root, split), excluded) for split in ("train", "val")}
    if any(path.is_dir() for path in (root / "test").glob("[!.]*")):
        files["test"] = class_files(root / "test", excluded)
    class_names = tuple(files["train"])
    parts = {split: part_of(root, split, found, class_names, excluded) for split, found in files.items()}
    unlabelled = root / "test" if (root / "test").is_dir() and "test" not in parts else None
    return Listing(class_names, parts, labels=SORTED, unlabelled=unlabelled)


def class_files(folder: Path, excluded: Excluded) -> dict[str, list[str]]:
    """The pictures of each class folder, as sorted paths below it; a folder without pictures is reported.

    Raises:
        UserError: there are fewer than two class folders.
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    names = _distinct(folder, [name for name in names if folder / name not in excluded])
    if len(names) < 2:
        packed = sorted(path.name for path in folder.glob("n*.tar"))
        raise UserError(
            f"{folder} has {len(names)} class folders: classification needs two or more, one for each class"
            + (f"; it has {len(packed)} archives such as {packed[0]}: unpack each into its folder" if packed else "")
        )
    files: dict[str, list[str]] = {}
    for name in names:
        found = _names_under(folder / name)
        files[name] = [path for path in found if folder / name / path not in excluded] if excluded.paths else found
    report(
        [
            Problem("empty", folder / name, f"the class folder holds no picture ({' '.join(SUFFIXES)})")
            for name, paths in files.items()
            if not paths
        ]
    )
    return files


def _distinct(folder: Path, names: list[str]) -> list[str]:
    """Without those whose letters, composed, are another's; they are reported."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(composed(name), name)
    twice = [name for name in names if first[composed(name)] != name]
    texts = {name: clash(folder / first[composed(name)], folder / name) for name in twice}
    report([Problem("same name", folder / name, text) for name, text in texts.items()])
    return [name for name in names if name not in twice]


def _names_under(folder: Path) -> list[str]:
    """As `pictures_under`, but strings: a million paths take half a minute and a gigabyte."""
    names: list[str] = []
    for parent, folders, files in walk(folder):
        folders[:] = [name for name in folders if name[0] != "."]
        inside = os.path.relpath(parent, folder)
        start = "" if inside == "." else f"{inside}/"
        names += [start + name for name in files if name.lower().endswith(SUFFIXES) and name[0] != "."]
    return sorted(names, key=lambda name: name.split("/"))


def part_of(
    root: Path, split: str, files: dict[str, list[str]], class_names: tuple[str, ...], excluded: Excluded
) -> LabelledPart:
    """The pictures of class folders as a part; folders that train has not, or has alone, are reported.

    Classes keep their names as train's folders have them; those of other splits may be in other Unicode letters.
    A class whose folder in train is excluded is left out here too; a folder that is excluded here need not be there.
    """
    index = {composed(name): label for label, name in enumerate(class_names)}
    there = {composed(name) for name in files}
    strange = [
        Problem("wrong label", root / split / name, "a class folder that train has not: a score would lack its class")
        for name in sorted(files)
        if composed(name) not in index and root / "train" / name not in excluded
    ]
    lacking = [
        Problem("missing", root / split / name, "train has this class folder, but it is not here")
        for name in sorted(class_names)
        if composed(name) not in there and root / split / name not in excluded
    ]
    report(strange + lacking)
    known = {name: paths for name, paths in files.items() if composed(name) in index}
    labels = [index[composed(name)] for name in known]
    label_N = np.repeat(labels, [len(paths) for paths in known.values()]).astype(np.int64)
    names = [f"{split}/{name}/{path}" for name, paths in known.items() for path in paths]
    return LabelledPart(PictureFiles(root, names), np.arange(len(names)), label_N)
