"""Files named after the images they are of."""

from pathlib import Path


class ImageFiles:
    """Places for the files of each predicted image that no other image's files take, within one process."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, folder: Path, name: str, endings: tuple[str, ...]) -> list[Path]:
        """One path an ending, through the folders of ``name``, which are made.

        ``deep/a.jpg`` becomes ``deep/a<ending>``; with its suffix, ``deep/a.png<ending>``, where another image, such as
        ``deep/a.jpg``, has taken one of those.
        """
        for stem in (folder / Path(name).with_suffix(""), folder / name):
            paths = [f"{stem}{ending}" for ending in endings]
            if not self._taken & set(paths):
                break
        stem.parent.mkdir(parents=True, exist_ok=True)
        self._taken |= set(paths)
        return [Path(path) for path in paths]
