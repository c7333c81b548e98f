"""Super-resolution from files: published data sets and test sets, and folders of your own.

Shapes: H W pixels of the large picture, S scale, P edge of a patch in the small one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Mean, Split
from nala_platform.data.files import check_folder
from nala_platform.data.images.image_file import read_image
from nala_platform.data.images.layouts.super_resolution import LAYOUTS, USUAL, find_test_sets
from nala_platform.data.images.layouts.super_resolution_pairs import PairFiles, PairSource, fault, pair_up, survey
from nala_platform.data.images.pairs import MEAN, STD, Pair, Patch, Views, cropped
from nala_platform.data.images.upscale_baselines import bicubic_baseline
from nala_platform.data.loader import Sample
from nala_platform.data.problems import BadFileError, Excluded
from nala_platform.errors import UserError, look_up
from nala_platform.paths import StrPath, shown
from nala_platform.similarity import WINDOW

SPLITS = ("train", "val", "test")
MADE = "Pillow bicubic, antialiased, 8 bits"


@dataclass(frozen=True)
class Folders:
    """Where the pictures are. Each folder is searched with all folders below it.

    Attributes:
        train_hr: large pictures to train on; needed.
        val_hr: large pictures to choose the best checkpoint by; needed.
        test_hr: large pictures to score; ``None``: those of validation, and `protocol` says so.
        train_lr, val_lr, test_lr: the small ones; ``None``: made from the large ones.
        layout: how ``data.root`` lies, a name in `LAYOUTS`; ``folders``: those named above are all there is. Beside a
            published layout they take the place of its own.
        test_sets: scored in place of ``test_hr``, each by itself; see `find_test_sets`.
        baseline: ``bicubic`` has the bicubic enlargement scored on the test pictures too.
    """

    train_hr: StrPath | None = None
    val_hr: StrPath | None = None
    test_hr: StrPath | None = None
    train_lr: StrPath | None = None
    val_lr: StrPath | None = None
    test_lr: StrPath | None = None
    layout: str = "folders"
    test_sets: StrPath | dict[str, StrPath] = field(default_factory=dict)
    baseline: Literal["none", "bicubic"] = "none"

    def sources(self) -> dict[str, list[PairSource]]:
        """Those of the splits that are given here."""
        given: dict[str, list[PairSource]] = {}
        for split in SPLITS:
            large, small = self._folder(f"{split}_hr"), self._folder(f"{split}_lr")
            if large is not None:
                given[split] = [PairSource(large, small)]
            elif small is not None:
                raise UserError(f"data.folders.{split}_lr is {small}, but there is no {split}_hr: give both or neither")
        if "test" in given and self.test_sets:
            raise UserError("data.folders has test_hr and test_sets: give one of them")
        return given

    def _folder(self, key: str) -> Path | None:
        if getattr(self, key) is None:
            return None
        folder = Path(getattr(self, key)).expanduser().absolute()
        check_folder(folder, f"data.folders.{key}")
        return folder


class PairFolderData(DataModule):
    """Large pictures and their small ones, which are read, or made by Pillow's antialiased bicubic filter.

    `pair_up` says how they are paired. Large pictures are cropped to multiples of S; a small one must have exactly 1/S
    of that size. Order and patches follow the run's seed.

    Args:
        root: of a published layout.
        folders: which layout, folders of your own, test sets.
        scale: S, 2, 3 or 4.
        patch: what training sees.
        batch_size: patches, of one process.
        num_workers: loader processes.
        predict_path: a picture, or a folder of them, to be enlarged by ``predict``; ``None``: the small test pictures.
        exclude: a file with the paths of pictures to leave out, relative to ``root`` where they are not absolute.

    Raises:
        UserError: folders or partners are missing, or sizes do not fit; found out now, from the files' headers.
    """

    mean: Mean = MEAN
    std: Mean = STD

    def __init__(
        self,
        root: StrPath | None = None,
        folders: Folders = Folders(),
        scale: int = 2,
        patch: Patch = Patch(),  # noqa: B008 - frozen
        batch_size: int = 16,
        num_workers: int = 0,
        predict_path: StrPath | None = None,
        exclude: StrPath | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size, eval_batch_size=1, predict_batch_size=1, num_workers=num_workers, seed=None
        )
        self.views = Views(scale, patch, self.seed, predict_path)
        home = None if root is None else Path(root).expanduser().absolute()
        self.root, self.folders, self.scale, self.patch = home, folders, scale, patch
        self.crop = (scale * patch.size, scale * patch.size)
        if home is not None:
            check_folder(home)
        layout = look_up(LAYOUTS, folders.layout, option="data.folders.layout")
        self.sources = layout(home, scale) | folders.sources()
        for split in ("train", "val"):
            if split not in self.sources:
                raise UserError(
                    f"data.folders.{split}_hr is missing: give --data.folders.{split}_hr the folder of large pictures"
                )
        self.namings = {}
        if folders.test_sets:
            found = find_test_sets(folders.test_sets, scale)
            self.namings = {name: naming for name, (naming, _) in found.items()}
            self.sources["test"] = [source for _, source in found.values()]
        self.has_test = "test" in self.sources
        self.excluded = Excluded(exclude, home or Path())
        self.files, self.deep = self._list()

    def _list(self) -> tuple[dict[str, list[PairFiles]], dict[str, dict[str, int]]]:
        files, deep = {}, {}
        for split, sources in self.sources.items():
            pairs = [pair_up(source, self.scale, self.excluded) for source in sources]
            if split == "test" and self.namings:
                pairs = [[pair._replace(part=part) for pair in found] for part, found in enumerate(pairs)]
            files[split], deep[split] = survey(split, list(chain(*pairs)), self.scale, self._least(split))
        return files, deep

    @property
    def test_sets(self) -> tuple[str, ...]:
        """Names of the test sets, in the order of ``test_set`` in a sample; none where the test is one folder."""
        return tuple(self.namings)

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`."""
        reader = self._reader(split)
        return self.views.items(split, reader, len(reader.files))

    def whole(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.whole`."""
        reader = self._reader(split)
        return self.views.whole(reader, len(reader.files))

    def _reader(self, split: Split) -> "PairReader":
        name = split if split in ("train", "val") else self._test()
        return PairReader(name, self.files[name], self.scale, self._least(name))

    def _least(self, split: str) -> int:
        return self.scale * self.patch.size if split == "train" else 2 * self.scale + WINDOW

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        sources = {split: [_origin(source) for source in sources] for split, sources in self.sources.items()}
        scored = sources[self._test()]
        return {
            "data": "folders of pictures" if self.root is None else self.folders.layout,
            "root": None if self.root is None else shown(self.root),
            "folders": {split: [str(source.large) for source in sources] for split, sources in self.sources.items()},
            "test split": "test" if self.has_test else "val (there is no test_hr)",
            "images": {split: len(files) for split, files in self.files.items()},
            "test sets": self._sets(),
            "low resolution": scored[0] if len({*scored}) == 1 else "see test sets",
            "low resolution in training": " and ".join(dict.fromkeys(sources["train"])),
            "cropping": "large pictures to multiples of the scale, at the right and the lower border",
            "bits": self.deep[self._test()] or "8; transparency over white, grey as three equal channels",
            **self.views.protocol(),
        }

    def _sets(self) -> dict[str, dict[str, Any]]:
        found = {}
        for part, (name, naming) in enumerate(self.namings.items()):
            source = self.sources["test"][part]
            images = sum(pair.part == part for pair in self.files["test"])
            found[name] = {
                "images": images,
                "images published": USUAL.get(name),
                "naming": naming,
                "folder": str(source.large),
                "low resolution": _origin(source),
            }
        return found

    def baselines(self) -> dict[str, dict[str, float]]:
        """What ``folders.baseline`` names; it takes a pass over all test pictures."""
        if self.folders.baseline == "none":
            return {}
        return {"bicubic": bicubic_baseline(self._pairs(), self.scale, self.test_sets)}

    def _pairs(self) -> Iterator[Pair]:
        reader = self._reader("test")
        return (reader(index) for index in range(len(reader.files)))

    def _test(self) -> str:
        return "test" if self.has_test else "val"


class PairReader:
    """Reads the i-th pair; the sizes are checked once more, against what the files hold."""

    def __init__(self, split: str, files: list[PairFiles], scale: int, least: int) -> None:
        self.split, self.files, self.scale, self.least = split, files, scale, least

    def __call__(self, index: int) -> Pair:
        """The pair, the large picture cropped to multiples of the scale.

        Raises:
            BadFileError: a file cannot be read, or a size does not fit.
        """
        files = self.files[index]
        large = read_image(files.large)
        small = None if files.small is None else read_image(files.small)
        problem = fault(files, large.size, small.size if small else None, self.scale, self.least, self.split)
        if problem is not None:
            raise BadFileError(problem)
        return Pair(files.name, cropped(large, self.scale), small, files.part)


def _origin(source: PairSource) -> str:
    return MADE if source.small is None else "read from files"
