"""ImageNet-1K (ILSVRC 2012) as people have it on disk: a folder a class to train on, and a flat folder to validate.

The labels of the flat folder are told by the devkit or by Kaggle's table. Either way a class is known by its WordNet id
("wnid", such as n01440764), and its index is the place of its wnid among the sorted folders of train: this is what
models are published with. The devkit's own ids are in another order.

Shapes: N pictures, C classes.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from nala_platform.data.images.layouts.class_folders import SORTED, class_files, part_of
from nala_platform.data.images.layouts.listing import LabelledPart, Listing, PictureFiles
from nala_platform.data.images.pictures import pictures_under, split_folder
from nala_platform.data.names import clash, composed
from nala_platform.data.problems import Excluded, Problem, report
from nala_platform.errors import UserError

DEVKIT = "ILSVRC2012_devkit_t12"
TRUTH, META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
SOLUTION = "LOC_val_solution.csv"


def devkit(root: Path, excluded: Excluded) -> Listing:
    """``root/train/<wnid>/…``, ``root/val/ILSVRC2012_val_00000001.JPEG …`` and the devkit, unpacked in ``root``.

    Line i of the devkit's ground truth is the ILSVRC2012_ID of picture number i; ``meta.mat`` says which wnid that is.
    ``root/test`` has no labels and is for prediction.
    """
    train = class_files(split_folder(root, "train"), excluded)
    folder = split_folder(root, "val")
    truth = {f"ILSVRC2012_val_{number:08d}": wnid for number, wnid in enumerate(_devkit_truth(root), 1)}
    labels = f"{SORTED}; of val, by {TRUTH} and {META}"
    return _listing(root, ".", train, _flat(root, folder, truth, tuple(train), excluded), labels, excluded)


def kaggle(root: Path, excluded: Excluded) -> Listing:
    """``ILSVRC/Data/CLS-LOC/{train/<wnid>,val,test}/…`` with ``LOC_val_solution.csv`` beside ``ILSVRC``, or in it.

    A picture's class is the first word of its ``PredictionString``. ``root`` is the folder that holds ``ILSVRC``, or
    ``ILSVRC`` itself.
    """
    inside = next((path for path in ("ILSVRC/Data/CLS-LOC", "Data/CLS-LOC") if (root / path).is_dir()), None)
    if inside is None:
        raise UserError(f"data.root: {root} has no folder ILSVRC/Data/CLS-LOC: name the folder that holds ILSVRC")
    data = root / inside
    train = class_files(split_folder(data, "train"), excluded)
    folder = split_folder(data, "val")
    tables = [root / SOLUTION, data.parent.parent / SOLUTION, data.parent.parent.parent / SOLUTION]
    table = next((path for path in tables if path.is_file()), None)
    if table is None:
        raise UserError(f"data.root: {root} has no {SOLUTION}: put it beside ILSVRC; it tells the classes of {folder}")
    labels = f"{SORTED}; of val, by {SOLUTION}"
    return _listing(
        root, inside, train, _flat(root, folder, _solution(table), tuple(train), excluded), labels, excluded
    )


def _listing(
    root: Path, inside: str, train: dict[str, list[str]], val: LabelledPart, labels: str, excluded: Excluded
) -> Listing:
    """Train's class folders and the flat validation folder as one data set."""
    class_names = tuple(train)
    parts = {"train": part_of(root, f"{inside}/train", train, class_names, excluded), "val": val}
    test = root / inside / "test"
    return Listing(class_names, parts, labels=labels, unlabelled=test if test.is_dir() else None)


def _flat(
    root: Path, folder: Path, truth: Mapping[str, str], class_names: tuple[str, ...], excluded: Excluded
) -> LabelledPart:
    """The pictures of a flat folder, by the wnid that ``truth`` tells for each name (without its suffix)."""
    files, problems, known = dict[str, Path](), [], []
    for path in pictures_under(folder):
        if path in excluded:
            files.setdefault(composed(path.stem), path)
        elif (first := files.setdefault(composed(path.stem), path)) is not path:
            if first in excluded:
                files[composed(path.stem)] = path
            else:
                problems.append(Problem("same name", path, clash(first, path)))
    truth = {composed(stem): composed(name) for stem, name in truth.items()}
    index = {composed(name): label for label, name in enumerate(class_names)}
    for stem, path in files.items():
        if path in excluded:
            continue
        if stem not in truth:
            problems.append(Problem("mislabelled", path, "no label is known for a picture of this name"))
        elif truth[stem] not in index:
            text = f"it is of the class {truth[stem]}, which has no folder in train"
            problems.append(Problem("wrong label", path, text))
        else:
            known.append((path.relative_to(root).as_posix(), index[truth[stem]]))
    absent = [folder / f"{stem}.JPEG" for stem in sorted({*truth} - {*files})]
    problems += [
        Problem("missing", path, "its label is known, but the picture is not there")
        for path in absent
        if path not in excluded
    ]
    report(problems)
    label_N = np.array([label for _, label in known], dtype=np.int64)
    return LabelledPart(PictureFiles(root, [name for name, _ in known]), np.arange(len(known)), label_N)


def _devkit_truth(root: Path) -> list[str]:
    """The wnid of each validation picture, by number; an id of no class stands as it is."""
    folder = next((root / inside / "data" for inside in (DEVKIT, ".", "devkit") if _is_devkit(root / inside)), None)
    if folder is None:
        packed = (root / f"{DEVKIT}.tar.gz").is_file()
        raise UserError(
            f"data.root: {root} has no {DEVKIT}/data/{TRUTH}, which tells the classes of a flat val folder: "
            f"unpack {DEVKIT}.tar.gz {'there' if packed else 'into it'}"
        )
    wnids = _wnids(folder / META)
    try:
        lines = (folder / TRUTH).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{folder / TRUTH} cannot be read ({error}): unpack it again") from error
    return [wnids.get(line, f"ILSVRC2012_ID {line}") for line in lines]


def _is_devkit(folder: Path) -> bool:
    return (folder / "data" / TRUTH).is_file()


def _wnids(path: Path) -> dict[str, str]:
    """ILSVRC2012_ID to wnid of the classes that pictures have; ``meta.mat`` lists their hypernyms too."""
    try:
        synsets: Any = loadmat(path, squeeze_me=True)["synsets"]
        return {
            # MATLAB's numbers are doubles, which some programs that write the file keep
            str(int(row["ILSVRC2012_ID"])): str(row["WNID"])
            for row in np.atleast_1d(synsets)
            if not row["num_children"]
        }
    except (MatReadError, OSError, KeyError, ValueError, TypeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path} cannot be read as the devkit's table of classes ({reason}): unpack it again"
        ) from error


def _solution(table: Path) -> dict[str, str]:
    """Picture name to wnid."""
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{table} cannot be read ({error}): copy it again") from error
    if not rows or not {"ImageId", "PredictionString"} <= {*rows[0]}:
        raise UserError(f"{table}: a table with the columns ImageId and PredictionString was expected: copy it again")
    words = {row["ImageId"]: (row["PredictionString"] or "").split() for row in rows}
    report([Problem("wrong label", table, f"{name!r} has no class") for name, found in words.items() if not found])
    return {name: found[0] for name, found in words.items() if found}
