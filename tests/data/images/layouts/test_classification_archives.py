"""Parquet files and WebDataset shards of pictures, and ImageNet found by its signs."""

import pickle
import sys
import tarfile
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archived import data_of, pixels_of, png, sample, write_parquet, write_shard

from nala_platform.data.images.image_folder import Augment, Pixels
from nala_platform.data.images.layouts import shard_index
from nala_platform.data.images.layouts.parquet_pictures import Rows
from nala_platform.data.images.layouts.splits import split_files
from nala_platform.data.order import Draw
from nala_platform.data.problems import BadFileError, collecting
from nala_platform.errors import UserError

QUIET = Augment(randaug="none", hflip=0.0)


@pytest.fixture(params=["data", "."])
def parquet_tree(request, tmp_path):
    """7 + 4 training rows in two files, 5 for validation, 3 for a test without labels."""
    folder, names = tmp_path / request.param, ["tench", "goldfish", "shark"]
    write_parquet(folder / "train-00000-of-00002.parquet", [(png(i), i % 3) for i in range(7)], names=names)
    write_parquet(folder / "train-00001-of-00002.parquet", [(png(10 + i), 2) for i in range(4)], names=names)
    write_parquet(
        folder / "validation-00000-of-00001.parquet", [(png(20 + i), 2 - i % 3) for i in range(5)], names=names
    )
    write_parquet(folder / "test-00000-of-00001.parquet", [(png(30 + i), -1) for i in range(3)], names=names)
    return tmp_path, folder


def test_parquet_is_read_by_row(parquet_tree):
    root, folder = parquet_tree
    data = data_of(root, "parquet")
    assert data.class_names == ("tench", "goldfish", "shark")
    train = data.whole("train")
    assert [train[Draw(i, 0)]["target"] for i in range(11)] == [0, 1, 2, 0, 1, 2, 0, 2, 2, 2, 2]
    for index, seed in ((9, 12), (0, 0), (6, 6), (10, 13), (3, 3)):  # across files and row groups, to and fro
        assert (train[Draw(index, 0)]["image"].permute(1, 2, 0).numpy() == pixels_of(png(seed))).all()
    name = (folder / "train-00001-of-00002.parquet" / "2").relative_to(root).as_posix()
    assert train[Draw(9, 0)]["name"] == name
    assert data.protocol()["images"] == {"train": 11, "val": 5}  # the test part has no labels
    assert data.protocol()["labels"] == "the numbers in the column of labels, with the names that the file tells"


def test_parquet_keeps_two_row_groups_and_no_file_in_memory(parquet_tree, monkeypatch):
    read = Counter()
    whole = pq.ParquetFile.read_row_group

    def counted(self, group, **options):
        read[self.metadata.num_rows, group] += 1
        return whole(self, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    part = data_of(parquet_tree[0], "parquet").listing.parts["train"]
    store = part.store
    assert isinstance(store, Rows)
    for index in range(11):
        part.read(index)
    assert read == {(7, 0): 1, (7, 1): 1, (7, 2): 1, (4, 0): 1, (4, 1): 1}
    assert len(store._kept) == 2
    copy = pickle.loads(pickle.dumps(store))  # what a worker is given where processes are spawned
    assert copy._kept == {} and (np.asarray(copy.read(9)) == pixels_of(png(12))).all()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["parquet", "webdataset"])
def test_workers_read_the_same_pixels_in_training_order(parquet_tree, tmp_path_factory, kind, workers):
    root = parquet_tree[0]
    if kind == "webdataset":
        root = tmp_path_factory.mktemp("shards")
        for shard in range(2):
            files = [part for i in range(6) for part in sample(f"{shard}{i}", 6 * shard + i, i % 2, "png")]
            write_shard(root / f"train-{shard}.tar", files)
        write_shard(root / "val-0.tar", sample("a", 1, 0) + sample("b", 2, 1))
    data = data_of(root, kind, num_workers=workers, augment=QUIET, pixels=Pixels(size=16))
    plain = data_of(root, kind, augment=QUIET)
    loader = data.train_dataloader()
    for epoch in (0, 1):
        loader.sampler.set_epoch(epoch)
        samples = [plain.items("train")[draw] for draw in loader.sampler]
        batches = list(loader)
        assert [name for batch in batches for name in batch["name"]] == [one["name"] for one in samples]
        seen = np.concatenate([batch["image"].numpy() for batch in batches])
        assert (seen == np.stack([one["image"].numpy() for one in samples])).all()


@pytest.mark.parametrize(("column", "label"), [("img", "labels"), ("image", "fine_label")])
def test_parquet_of_other_columns_and_without_names_or_validation(tmp_path, column, label):
    options = {"column": column, "label": label, "struct": False}
    write_parquet(tmp_path / "train.parquet", [(png(i), i % 2) for i in range(10)], **options)
    write_parquet(tmp_path / "test.parquet", [(png(i), i % 2) for i in range(4)], **options)
    data = data_of(tmp_path, "parquet")
    assert data.class_names == ("0", "1")
    assert data.protocol()["images"] == {"train": 8, "val": 2, "test": 4}
    assert data.protocol()["hold-out"].startswith("val: 10 %")


def test_what_is_wrong_with_parquet_is_named(tmp_path):
    rows = [(png(i), i % 2) for i in range(6)]
    write_parquet(tmp_path / "train.parquet", rows)
    write_parquet(tmp_path / "val.parquet", [*rows, (png(9), 2), (png(9), None), (b"damaged", 0), (None, 1)])
    with collecting() as problems:
        data = data_of(tmp_path, "parquet")
    assert [(problem.kind, problem.path.relative_to(tmp_path).as_posix(), problem.text) for problem in problems] == [
        ("wrong label", "val.parquet/6", "label 2 is outside 0..1"),
        ("wrong label", "val.parquet/7", "label -1 is outside 0..1"),
    ]
    for index, kind, row in ((6, "unreadable", 8), (7, "missing", 9)):
        with pytest.raises(BadFileError) as caught:
            data.items("val")[Draw(index, 0)]
        assert (caught.value.problem.kind, caught.value.problem.path) == (kind, tmp_path / "val.parquet" / str(row))
    (tmp_path / "val.parquet").write_bytes((tmp_path / "val.parquet").read_bytes()[:-300])
    with pytest.raises(UserError, match=r"val\.parquet: cannot be read as parquet"):
        data_of(tmp_path, "parquet")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "val.parquet")
    with pytest.raises(
        UserError, match=r"val\.parquet: an image and a label \(a number\) a row are needed; there: text"
    ):
        data_of(tmp_path, "parquet")


def test_parquet_without_pyarrow_says_what_to_install(parquet_tree, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        UserError, match=r"read by pyarrow, which is not installed: pip install 'nala-platform\[text\]'"
    ):
        data_of(parquet_tree[0], "parquet")


@pytest.fixture
def shard_tree(tmp_path):
    """Six pictures to train on in two shards, three to validate; names with dots and folders."""
    write_shard(tmp_path / "imagenet1k-train-0000.tar", sample("n01/a", 0, 0) + sample("n02/a", 1, 1, "jpeg"))
    files = [part for i in range(4) for part in sample(f"b{i}", 2 + i, i % 3, "png")]
    write_shard(tmp_path / "imagenet1k-train-0001.tar", files)
    write_shard(
        tmp_path / "imagenet1k-validation-00.tar", [part for i in range(3) for part in sample(f"v{i}", 20 + i, 2 - i)]
    )
    return tmp_path


def test_shards_are_read_by_offset(shard_tree):
    data = data_of(shard_tree, "webdataset")
    assert data.class_names == ("0", "1", "2") and data.protocol()["images"] == {"train": 6, "val": 3}
    train = data.whole("train")
    assert [train[Draw(i, 0)]["target"] for i in range(6)] == [0, 1, 0, 1, 2, 0]
    for index in (5, 2, 0):
        form = "JPEG" if index < 2 else "PNG"
        assert (train[Draw(index, 0)]["image"].permute(1, 2, 0).numpy() == pixels_of(png(index, form=form))).all()
    assert train[Draw(1, 0)]["name"] == "imagenet1k-train-0000.tar/n02/a.jpeg"
    assert [data.whole("val")[Draw(i, 0)]["target"] for i in range(3)] == [2, 1, 0]
    assert len(pickle.loads(pickle.dumps(data.listing.parts["val"]))) == 3


def test_what_is_wrong_with_a_shard_is_named(shard_tree):
    bad = [("x.jpg", png(1)), ("y.cls", b"1"), ("z.jpg", png(2)), ("z.cls", b"cat"), ("w.jpg", b"no picture")]
    bad += [("w.cls", b" 1\n"), ("u.jpg", png(3)), ("u.cls", b"7"), *sample("good", 9, 2)]
    write_shard(shard_tree / "imagenet1k-validation-00.tar", bad)
    with collecting() as problems:
        data = data_of(shard_tree, "webdataset")
    assert {(problem.kind, problem.path.name) for problem in problems} == {
        ("unpaired", "x.jpg"),
        ("unpaired", "y.cls"),
        ("wrong label", "z.jpg"),
        ("wrong label", "u.jpg"),
    }
    part = data.listing.parts["val"]
    assert [part.path(i).name for i in range(len(part))] == ["w.jpg", "good.jpg"] and part.label_N.tolist() == [1, 2]
    with pytest.raises(BadFileError, match=r"validation-00\.tar/w\.jpg: not a picture that Pillow knows"):
        data.items("val")[Draw(0, 0)]
    (shard_tree / "list.txt").write_text("".join(f"{problem.path}\n" for problem in problems))
    assert len(data_of(shard_tree, "webdataset", exclude=str(shard_tree / "list.txt")).listing.parts["val"]) == 2


@pytest.mark.parametrize("second", ["v1.jpg", "v1.png", "v1.cls"])
def test_a_sample_that_has_a_file_twice_is_a_problem(shard_tree, second):
    """Which of the two is meant, no one can tell; the first stays, and the other samples are as they were."""
    path, files = (
        shard_tree / "imagenet1k-validation-00.tar",
        [part for i in range(3) for part in sample(f"v{i}", i, i)],
    )
    write_shard(path, [*files, (second, b"0" if second.endswith("cls") else png(9))])
    with pytest.raises(UserError, match=rf"validation-00\.tar/{second}: the sample has v1\.(jpg|cls) already"):
        data_of(shard_tree, "webdataset")
    with collecting() as problems:
        found = data_of(shard_tree, "webdataset").whole("val")
    assert [(problem.kind, problem.path) for problem in problems] == [("duplicate", path / second)]
    assert [found[Draw(i, 0)]["target"] for i in range(3)] == [0, 1, 2]
    assert (found[Draw(1, 0)]["image"].permute(1, 2, 0).numpy() == pixels_of(png(1, form="JPEG"))).all()


def test_the_index_of_large_shards_is_kept_until_they_change(shard_tree, tmp_path_factory, monkeypatch, capsys):
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert len(data_of(shard_tree, "webdataset").listing.parts["train"]) == 6
    assert not list(cache.iterdir())  # small ones are read again
    monkeypatch.setattr(shard_index, "LARGE", 1)
    first = data_of(shard_tree, "webdataset")
    assert capsys.readouterr().err.count("reading the headers of") == 2
    with monkeypatch.context() as patch:
        patch.setattr(tarfile, "open", None)
        second = data_of(shard_tree, "webdataset")
    for split in ("train", "val"):
        one, other = first.listing.parts[split], second.listing.parts[split]
        assert (one.label_N == other.label_N).all() and len(one) == len(other)
        for index in range(len(one)):
            assert one.path(index) == other.path(index)
            assert (np.asarray(one.read(index)) == np.asarray(other.read(index))).all()
    assert capsys.readouterr().err == ""
    write_shard(shard_tree / "imagenet1k-validation-00.tar", [*sample("new", 1, 2), ("x.jpg", png(1))])
    for _ in range(2):  # what is flawed is not kept
        with collecting() as problems:
            third = data_of(shard_tree, "webdataset")
        assert [problem.path.name for problem in problems] == ["x.jpg"]
        assert third.listing.parts["val"].path(0).name == "new.jpg"
    assert capsys.readouterr().err.count("reading the headers of 1 shards") == 2
    monkeypatch.setenv("XDG_CACHE_HOME", str(shard_tree / "imagenet1k-train-0000.tar"))
    (shard_tree / "list.txt").write_text("imagenet1k-validation-00.tar/x.jpg\n")
    data = data_of(shard_tree, "webdataset", exclude=str(shard_tree / "list.txt"))
    assert data.protocol()["images"] == {"train": 6, "val": 1}
    assert "cannot be written: each start reads the headers of all shards" in capsys.readouterr().err


def test_a_cut_off_or_packed_shard_is_named(shard_tree):
    path = shard_tree / "imagenet1k-train-0001.tar"
    whole = path.read_bytes()
    for data in (whole[:1500], b"\x1f\x8b" + whole, b""):
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"train-0001\.tar: cannot be read as a plain tar archive"):
            data_of(shard_tree, "webdataset")
        with collecting() as problems:
            data_of(shard_tree, "webdataset")
        assert problems[0].kind == "unreadable" and problems[0].path == path


def test_the_split_of_an_archive_is_told_by_its_name(tmp_path):
    def found(*names):
        for path in tmp_path.rglob("*.tar"):
            path.unlink()
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"")
        there = split_files(tmp_path, ".tar")
        return {split: [path.relative_to(tmp_path).as_posix() for path in paths] for split, paths in there.items()}

    assert found("train/0.tar", "valid/0.tar") == {"train": ["train/0.tar"], "val": ["valid/0.tar"]}
    assert found("b-train-1.tar", "b-train-0.tar", "val.tar")["train"] == ["b-train-0.tar", "b-train-1.tar"]
    assert found("train/a.tar", "train/val-1.tar") == {"train": ["train/a.tar"], "val": ["train/val-1.tar"]}
    with pytest.raises(UserError, match=r"odd\.tar belongs to no split, or to two"):
        found("train.tar", "odd.tar")
    with pytest.raises(UserError, match=r"train-val\.tar belongs to no split, or to two"):
        found("train.tar", "train-val.tar")
    with pytest.raises(UserError, match=r"no \.tar file of train \(there: no \.tar files\)"):
        found()
    with pytest.raises(UserError, match=r"\.tar files for train alone"):
        found("train.tar")


def test_imagenet_is_found_by_its_signs(shard_tree, parquet_tree, class_tree, tmp_path_factory):
    assert data_of(class_tree, "imagenet").protocol()["found"] == "folders"
    bare = tmp_path_factory.mktemp("bare")
    with pytest.raises(UserError, match=r"is no ImageNet that is known \(there: nothing\)"):
        data_of(bare, "imagenet")
    (bare / "ILSVRC2012_img_train.tar").write_bytes(b"")
    with pytest.raises(UserError, match=r"is no ImageNet that is known \(there: ILSVRC2012_img_train\.tar\)"):
        data_of(bare, "imagenet")
    only_shards = tmp_path_factory.mktemp("shards")
    for path in shard_tree.glob("*.tar"):
        path.rename(only_shards / path.name)
    assert data_of(only_shards, "imagenet").protocol()["found"] == "webdataset"
    assert data_of(parquet_tree[0], "imagenet", exclude=None).protocol()["found"] == "parquet"


def test_two_kinds_of_signs_are_not_chosen_between(class_tree):
    write_shard(class_tree / "x-train.tar", [])
    with pytest.raises(UserError, match=r"looks like folders and webdataset: say --data\.layout folders, or another"):
        data_of(class_tree, "imagenet")
