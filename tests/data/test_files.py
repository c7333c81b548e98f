"""A folder that is none is told from one that is not there."""

import errno
import os

import pytest

from nala_platform.data.files import files_under
from nala_platform.data.images.image_folder import ImageFolderData
from nala_platform.data.images.labels import Labels
from nala_platform.data.images.layouts.classification import LAYOUTS as CLASSIFIED
from nala_platform.data.images.layouts.segmentation import LAYOUTS as SEGMENTED
from nala_platform.data.images.mask_folder import MaskFolderData
from nala_platform.data.images.pair_folder import Folders, PairFolderData
from nala_platform.data.language.text import TextData
from nala_platform.data.language.token_files import TokenFileData
from nala_platform.errors import UserError

WITH_ROOT = [
    *((lambda root, name=name: ImageFolderData(root, layout=name), "data.root") for name in CLASSIFIED),
    *((lambda root, name=name: MaskFolderData(root, Labels(2), layout=name), "data.root") for name in SEGMENTED),
    *((lambda root, name=name: PairFolderData(root, Folders(layout=name)), "data.root") for name in ("div2k", "df2k")),
    *((lambda root, name=name: TokenFileData(root, layout=name), "data.root") for name in ("nanogpt", "llm_c")),
    (lambda root: TextData(root, layout="wikitext"), "data.root"),
    (lambda root: PairFolderData(folders=Folders(train_hr=root)), "data.folders.train_hr"),
    (lambda root: PairFolderData(folders=Folders(train_hr=root, val_hr=root)), "data.folders.train_hr"),
]


@pytest.mark.parametrize(("build", "key"), WITH_ROOT)
def test_a_file_is_no_folder(build, key, tmp_path):
    file = tmp_path / "data.zip"
    file.write_bytes(b"PK")
    with pytest.raises(UserError) as caught:
        build(str(file))
    assert str(caught.value) == f"{key}: {file} is a file, not a folder"
    with pytest.raises(UserError) as caught:
        build(str(tmp_path / "none"))
    assert str(caught.value) == f"{key}: folder {tmp_path / 'none'} does not exist"


def refusing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let no folder called ``name`` be read, as for a user without the right to; root has every right."""
    scandir = os.scandir

    def scan(path):
        if os.fspath(path).rstrip("/").endswith(name):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)


@pytest.mark.parametrize(("build", "key"), WITH_ROOT)
def test_a_folder_that_cannot_be_read_is_named_with_its_key(build, key, tmp_path, monkeypatch):
    (tmp_path / "secret").mkdir()
    refusing(monkeypatch, "secret")
    with pytest.raises(UserError, match=rf"^{key}: cannot read .*secret: Permission denied: let this user read it$"):
        build(str(tmp_path / "secret"))


def test_a_folder_below_that_cannot_be_read_is_not_passed_over(tmp_path, monkeypatch):
    for name in ("a", "secret"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text("x")
    refusing(monkeypatch, "secret")
    with pytest.raises(UserError, match=r"^cannot read the folder .*secret: Permission denied: let this user read it$"):
        files_under(tmp_path, (".txt",))
