"""The MNIST family in IDX files: MNIST, Fashion-MNIST, KMNIST, EMNIST.

Shapes: N pictures, H W pixels.
"""

import gzip
import zlib
from functools import partial
from pathlib import Path

import numpy as np

from nala_platform.data.images.layouts.listing import Arrays, LabelledPart, Layout, Listing, labelled
from nala_platform.data.problems import BadFileError, Excluded, Problem, report
from nala_platform.errors import UserError

KINDS = {"images": 3, "labels": 1}  # number of dimensions, which is in the names of the files
BYTE = 8  # the code of unsigned bytes
_MEND = "download it again"


def idx(root: Path, excluded: Excluded) -> Listing:
    """``{train,t10k}-{images-idx3,labels-idx1}-ubyte``, with ``.gz`` or not, in ``root``, or ``raw`` below it.

    ``train-images.idx3-ubyte`` is read too. There are as many classes as train's labels tell.
    """
    return _listing(root, excluded, train="train", test="t10k", offset=0, turned=False)


def emnist(split: str) -> Layout:
    """A split of EMNIST, ``emnist-<split>-{train,test}-…``, with the classes that ``emnist-<split>-mapping.txt`` names.

    EMNIST stores pictures by columns, so they are transposed here; ``letters`` counts its labels from 1.
    """
    return partial(
        _listing,
        train=f"emnist-{split}-train",
        test=f"emnist-{split}-test",
        offset=int(split == "letters"),
        turned=True,
        mapping=f"emnist-{split}-mapping.txt",
    )


def _listing(
    root: Path, excluded: Excluded, *, train: str, test: str, offset: int, turned: bool, mapping: str | None = None
) -> Listing:
    found = {split: _pair(root, stem, turned) for split, stem in (("train", train), ("test", test))}
    labels = {split: label_N.astype(np.int64) - offset for split, (_, label_N) in found.items()}
    folder = found["train"][0].files[0].parent
    names = None if mapping is None else _mapped(folder / mapping, offset)
    class_names = names or tuple(map(str, range(int(labels["train"].max(initial=-1)) + 1)))
    if len(class_names) < 2:
        report([Problem("wrong label", folder, f"train has labels of {len(class_names)} classes: two are needed")])
    parts: dict[str, LabelledPart] = {
        split: labelled(store, labels[split], excluded, len(class_names)) for split, (store, _) in found.items()
    }
    text = f"those of the files{f', less {offset}' if offset else ''}"
    return Listing(class_names, parts, labels=f"{text}, named by {mapping}" if names else text)


def _pair(root: Path, stem: str, turned: bool) -> tuple[Arrays, np.ndarray]:
    """Pictures and labels of a part; what is wrong with one of the files is reported, and the part is empty then."""
    paths = {kind: _file(root, f"{stem}-{kind}", dims) for kind, dims in KINDS.items()}
    try:
        pixels_NHW, label_N = (read_idx(paths[kind], dims) for kind, dims in KINDS.items())
        if len(pixels_NHW) != len(label_N):
            text = f"{len(label_N)} labels, but {paths['images'].name} has {len(pixels_NHW)} pictures: {_MEND}"
            raise BadFileError(Problem("wrong size", paths["labels"], text))
    except BadFileError as error:
        report([error.problem])
        pixels_NHW, label_N = np.zeros((0, 1, 1), np.uint8), np.zeros(0, np.uint8)
    if turned:
        pixels_NHW = np.ascontiguousarray(pixels_NHW.transpose(0, 2, 1))
    return Arrays(pixels_NHW, [(paths["images"], len(pixels_NHW))]), label_N


def _file(root: Path, stem: str, dims: int) -> Path:
    folders = [root, root / "raw", *sorted(path for path in root.glob("*/raw") if path.is_dir())]
    names = [f"{stem}{dot}idx{dims}-ubyte{packed}" for packed in ("", ".gz") for dot in "-."]
    holders = {folder: folder / name for folder in folders for name in reversed(names) if (folder / name).is_file()}
    if len(holders) > 1:
        listed = " and ".join(str(path) for path in list(holders.values())[:2])
        raise UserError(f"data.root: {root} has {listed}: name the folder of one data set")
    if not holders:
        raise UserError(f"data.root: {root} has no {names[0]}, with .gz or not, nor has a folder raw in it")
    return next(iter(holders.values()))


def read_idx(path: Path, dims: int) -> np.ndarray:
    """The unsigned bytes of an IDX file: two zeros, the code 8, the number of dimensions, their sizes, the values.

    Raises:
        BadFileError: the file is damaged, or holds something else.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise BadFileError(Problem("unreadable", path, f"cannot be read ({error}): {_MEND}")) from error
    start = 4 + 4 * dims
    if len(data) < start:
        raise BadFileError(Problem("wrong size", path, f"is cut off in its head: {_MEND}"))
    if data[:4] != bytes((0, 0, BYTE, dims)):
        text = f"begins with {data[:4].hex()}, not 0000{BYTE:02x}{dims:02x}: no IDX file of bytes in {dims} dimensions"
        raise BadFileError(Problem("unreadable", path, text))
    shape = np.frombuffer(data, dtype=">u4", count=dims, offset=4).tolist()
    values = np.frombuffer(data, dtype=np.uint8, offset=start)
    if len(values) != np.prod(shape, dtype=np.int64):
        text = f"has {len(values)} values, but its sizes are {' x '.join(map(str, shape))}: {_MEND}"
        raise BadFileError(Problem("wrong size", path, text))
    return values.reshape(shape)


def _mapped(path: Path, offset: int) -> tuple[str, ...] | None:
    """The first character of each class: a line has a label and the codes of its characters."""
    if not path.is_file():
        return None
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        rows = sorted((int(label), int(code)) for label, code, *_ in lines)
        if [label for label, _ in rows] == list(range(offset, offset + len(rows))):
            return tuple(chr(code) for _, code in rows)
    except ValueError as error:
        raise UserError(f"{path}: a label and a character's code a line were expected: {_MEND}") from error
    raise UserError(f"{path}: its labels do not count from {offset}: {_MEND}")
