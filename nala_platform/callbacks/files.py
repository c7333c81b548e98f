"""Files named after the images they are of."""

from itertools import chain, count
from pathlib import Path


def take_files(folder: Path, name: str, endings: tuple[str, ...]) -> list[Path]:
    """New, empty files of one predicted image, which no other image's files replace; their folders are made.

    ``deep/a.jpg`` becomes ``deep/a<ending>``; with its suffix, ``deep/a.png<ending>``, where a file is there already,
    such as that of ``deep/a.jpg``; then ``deep/a.png-2<ending>`` and so on. They are created, not looked for, so this
    also holds between processes that predict together, and where the disk takes ``A.png`` for ``a.png``.

    Args:
        folder: of the predictions.
        name: of the image, a path below its own folder.
        endings: of the files' names.
    """
    whole = folder / name
    whole.parent.mkdir(parents=True, exist_ok=True)
    for stem in chain((whole.with_suffix(""), whole), (f"{whole}-{number}" for number in count(2))):
        paths = [Path(f"{stem}{ending}") for ending in endings]
        if _create(paths):
            return paths
    raise AssertionError("the numbers do not end")


def _create(paths: list[Path]) -> bool:
    for place, path in enumerate(paths):
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            for mine in paths[:place]:
                mine.unlink()
            return False
    return True
