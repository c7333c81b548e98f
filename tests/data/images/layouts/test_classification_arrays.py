"""CIFAR and the MNIST family, written here byte by byte as their authors describe the files."""

import gzip
import pickle
import struct

import numpy as np
import pytest

from nala_platform.data.images.image_folder import Augment, ImageFolderData, Pixels
from nala_platform.data.order import Draw
from nala_platform.data.problems import collecting
from nala_platform.errors import UserError

RNG = np.random.default_rng(0)
COUNT = 40  # pictures of a batch
CIFAR = [("cifar10", "py"), ("cifar10", "bin"), ("cifar100", "py"), ("cifar100", "bin")]


def data_of(root, layout, **options):
    return ImageFolderData(str(root), **{"layout": layout, "pixels": Pixels(size=32), "batch_size": 2, **options})


def write_cifar(root, layout, form):
    """Folders of the published names; returns all pictures (N, 32, 32, 3) and fine labels of train and test."""
    classes = 10 if layout == "cifar10" else 100
    ends = {("cifar10", "py"): "10-batches-py", ("cifar10", "bin"): "10-batches-bin"}
    ends |= {("cifar100", "py"): "100-python", ("cifar100", "bin"): "100-binary"}
    folder = root / f"cifar-{ends[layout, form]}"
    folder.mkdir(parents=True)
    suffix = "" if form == "py" else ".bin"
    batches = [f"data_batch_{i}" for i in range(1, 6)] if layout == "cifar10" else ["train"]
    found = {"train": ([], []), "test": ([], [])}
    for name in [*batches, "test_batch" if layout == "cifar10" else "test"]:
        pixels = RNG.integers(0, 256, (COUNT, 32, 32, 3), dtype=np.uint8)
        labels = np.arange(COUNT) * 7 % 10
        planes = [b"".join(picture[..., channel].tobytes() for channel in range(3)) for picture in pixels]
        if form == "py":
            rows = np.stack([np.frombuffer(plane, np.uint8) for plane in planes])
            batch = {b"data": rows, b"filenames": [b"x.png"] * COUNT}
            batch |= {b"labels": labels.tolist()} if layout == "cifar10" else {}
            batch |= {b"fine_labels": labels.tolist(), b"coarse_labels": [0] * COUNT} if layout == "cifar100" else {}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
        else:
            heads = [bytes([label]) if layout == "cifar10" else bytes([19, label]) for label in labels.tolist()]
            data = b"".join(head + plane for head, plane in zip(heads, planes, strict=True))
            (folder / f"{name}{suffix}").write_bytes(data)
        part = found["test" if "test" in name else "train"]
        part[0].append(pixels)
        part[1].append(labels)
    names = [f"thing{i:02d}" for i in range(classes)]
    if form == "py":
        key = b"label_names" if layout == "cifar10" else b"fine_label_names"
        meta = folder / ("batches.meta" if layout == "cifar10" else "meta")
        meta.write_bytes(pickle.dumps({key: [name.encode() for name in names]}, protocol=2))
    else:
        meta = folder / ("batches.meta.txt" if layout == "cifar10" else "fine_label_names.txt")
        meta.write_text("\n".join(names) + "\n\n")
    return folder, {
        split: (np.concatenate(pixels), np.concatenate(labels)) for split, (pixels, labels) in found.items()
    }


@pytest.mark.parametrize(("layout", "form"), CIFAR)
def test_cifar_is_read_as_it_was_written(tmp_path, layout, form):
    folder, written = write_cifar(tmp_path, layout, form)
    for root in (tmp_path, folder):
        data = data_of(root, layout)
        assert data.class_names[:2] == ("thing00", "thing01")
        assert data.num_classes == (10 if layout == "cifar10" else 100)
        test = data.whole("test")
        assert [test[Draw(i, 0)]["target"] for i in range(COUNT)] == written["test"][1].tolist()
        for i in (0, 17, COUNT - 1):
            assert (test[Draw(i, 0)]["image"].permute(1, 2, 0).numpy() == written["test"][0][i]).all()
    name = (
        {"py": "test_batch", "bin": "test_batch.bin"}[form]
        if layout == "cifar10"
        else f"test{'.bin' * (form == 'bin')}"
    )
    assert test[Draw(17, 0)]["name"] == f"{name}/17"
    assert data.protocol()["labels"].startswith("those of the python" if form == "py" else "those of the binary")


@pytest.mark.parametrize(("layout", "form"), CIFAR)
def test_the_hold_out_is_stratified_and_fixed_and_every_picture_of_train_is_in_one_part(
    tmp_path, layout, form, monkeypatch
):
    _, written = write_cifar(tmp_path, layout, form)
    data = data_of(tmp_path, layout)
    parts = data.listing.parts
    pixels, labels = written["train"]
    together = np.concatenate([parts["train"].place_N, parts["val"].place_N])
    assert sorted(together.tolist()) == list(range(len(labels)))
    for split in ("train", "val"):
        part = parts[split]
        assert (part.label_N == labels[part.place_N]).all()
        assert (np.asarray(part.read(2)) == pixels[part.place_N[2]]).all()
    counts = np.bincount(labels, minlength=data.num_classes)
    expected = [max(round(int(count) / 10), int(count > 1)) for count in counts]
    assert np.bincount(parts["val"].label_N, minlength=data.num_classes).tolist() == expected
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    again = data_of(tmp_path, layout)
    assert again.seed == 7 and (again.listing.parts["val"].place_N == parts["val"].place_N).all()
    protocol = data.protocol()
    assert protocol["hold-out"].startswith("val: 10 % of each class of train") and protocol["test split"] == "test"
    assert protocol["images"] == {"train": len(labels) - sum(expected), "val": sum(expected), "test": COUNT}
    share = float((labels[:COUNT] == np.bincount(parts["train"].label_N).argmax()).mean())
    assert data.baselines() == {"majority class": {"top1": pytest.approx(share)}}


def test_all_of_train_can_be_trained_on(tmp_path):
    write_cifar(tmp_path, "cifar10", "py")
    data = data_of(tmp_path, "cifar10_full")
    assert data.protocol()["images"] == {"train": 5 * COUNT, "val": COUNT}
    assert data.protocol()["hold-out"] == "none: the official test part is val"
    assert data.protocol()["test split"].startswith("val (")


def test_a_truncated_or_absent_batch_is_named(tmp_path):
    folder, _ = write_cifar(tmp_path / "py", "cifar10", "py")
    whole = (folder / "data_batch_2").read_bytes()
    (folder / "data_batch_2").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"data_batch_2: cannot be read \(.*truncated.*\): unpack the archive again"):
        data_of(tmp_path / "py", "cifar10")
    (folder / "data_batch_2").unlink()
    with pytest.raises(UserError, match=r"data_batch_2: no such file"):
        data_of(tmp_path / "py", "cifar10")
    folder, _ = write_cifar(tmp_path / "bin", "cifar100", "bin")
    (folder / "train.bin").write_bytes((folder / "train.bin").read_bytes()[:-5])
    with pytest.raises(UserError, match=r"train\.bin: 122955 bytes are no number of records of 3074"):
        data_of(tmp_path / "bin", "cifar100")


def test_labels_out_of_range_are_named_and_can_be_left_out(tmp_path):
    folder, _ = write_cifar(tmp_path, "cifar10", "bin")
    data = bytearray((folder / "data_batch_3.bin").read_bytes())
    data[5 * 3073] = 10
    (folder / "data_batch_3.bin").write_bytes(data)
    with pytest.raises(UserError, match=r"data_batch_3\.bin/5: label 10 is outside 0\.\.9"):
        data_of(tmp_path, "cifar10")
    (tmp_path / "list.txt").write_text("cifar-10-batches-bin/data_batch_3.bin/5\n")
    data = data_of(tmp_path, "cifar10", exclude=str(tmp_path / "list.txt"))
    assert sum(data.protocol()["images"].values()) == 6 * COUNT - 1


def test_a_pickle_that_runs_a_program_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("it ran",)

    folder, _ = write_cifar(tmp_path, "cifar10", "py")
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil()}, protocol=2))
    with pytest.raises(UserError, match=r"data_batch_1: cannot be read \(it asks for (__builtin__|builtins)\.print"):
        data_of(tmp_path, "cifar10")


def test_pictures_and_labels_of_a_batch_must_be_as_many(tmp_path):
    folder, _ = write_cifar(tmp_path, "cifar10", "py")
    batch = pickle.loads((folder / "test_batch").read_bytes())
    batch[b"labels"].pop()
    (folder / "test_batch").write_bytes(pickle.dumps(batch))
    with pytest.raises(UserError, match=r"test_batch: 40 pictures, but 39 labels"):
        data_of(tmp_path, "cifar10")


def test_labels_of_a_batch_must_be_numbers(tmp_path):
    folder, _ = write_cifar(tmp_path, "cifar10", "py")
    path = folder / "test_batch"
    path.write_bytes(pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": ["cat", "dog"]}, protocol=2))
    with pytest.raises(UserError, match="test_batch: labels are no numbers"):
        data_of(tmp_path, "cifar10")


def test_no_cifar_or_one_that_is_packed_says_so(tmp_path):
    with pytest.raises(
        UserError, match=r"has no test_batch and batches\.meta, nor test_batch\.bin .*name the unpacked"
    ):
        data_of(tmp_path, "cifar10")
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"")
    with pytest.raises(UserError, match=r"unpack cifar-10-python\.tar\.gz"):
        data_of(tmp_path, "cifar10")


def test_padded_crops_are_shifts_of_the_picture(tmp_path):
    write_cifar(tmp_path, "cifar10", "py")
    augment = Augment(randaug="none", hflip=0.0, pad=4)
    data = data_of(tmp_path, "cifar10", augment=augment, pixels=Pixels(size=32, mean=(0.0,) * 3, std=(1.0,) * 3))
    shifts = set()
    for index in range(30):
        seen = data.items("train")[Draw(index, epoch=1)]["image"].mul(255).round().permute(1, 2, 0).numpy().astype(int)
        picture = np.pad(np.asarray(data.listing.parts["train"].read(index)), ((4, 4), (4, 4), (0, 0)))
        found = [(y, x) for y in range(9) for x in range(9) if (picture[y : y + 32, x : x + 32] == seen).all()]
        assert len(found) == 1
        shifts |= set(found)
    assert len(shifts) > 15


def idx_bytes(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, train="train", test="t10k", dash="-", pack=False, first=0, classes=10):
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for stem, count in ((train, 50), (test, 20)):
        pixels = RNG.integers(0, 256, (count, 28, 20), dtype=np.uint8)
        labels = (np.arange(count) % classes + first).astype(np.uint8)
        for name, array in ((f"images{dash}idx3", pixels), (f"labels{dash}idx1", labels)):
            data = idx_bytes(array)
            path = folder / f"{stem}-{name}-ubyte{'.gz' if pack else ''}"
            path.write_bytes(gzip.compress(data) if pack else data)
        written[stem] = pixels, labels.astype(int)
    return written


@pytest.mark.parametrize("place", [".", "raw", "FashionMNIST/raw"])
@pytest.mark.parametrize(("dash", "pack"), [("-", False), ("-", True), (".", False), (".", True)])
def test_idx_files_under_their_usual_names_and_places(tmp_path, place, dash, pack):
    written = write_idx(tmp_path / place, dash=dash, pack=pack)
    data = data_of(tmp_path, "idx", pixels=Pixels(size=(28, 20), crop_pct=1.0))
    assert data.num_classes == 10 and data.class_names == tuple("0123456789")
    assert data.protocol()["images"] == {"train": 40, "val": 10, "test": 20}
    pixels, labels = written["t10k"]
    item = data.whole("test")[Draw(13, 0)]
    assert item["target"] == labels[13] and item["image"].shape == (3, 28, 20)
    assert all((item["image"][channel].numpy() == pixels[13]).all() for channel in range(3))
    assert item["name"].endswith(f"t10k-images{dash}idx3-ubyte{'.gz' if pack else ''}/13")
    batch = next(iter(data.train_dataloader()))
    assert batch["image"].shape == (2, 3, 28, 20)


def test_emnist_is_turned_and_its_letters_count_from_one(tmp_path):
    written = write_idx(tmp_path, train="emnist-letters-train", test="emnist-letters-test", first=1, classes=5)
    lines = [f"{label} {ord('A') + label - 1} {ord('a') + label - 1}" for label in range(1, 6)]
    (tmp_path / "emnist-letters-mapping.txt").write_text("\n".join(lines))
    data = data_of(tmp_path, "emnist_letters")
    assert data.class_names == tuple("ABCDE")
    item = data.whole("test")[Draw(6, 0)]
    assert item["target"] == 1  # the seventh: 6 % 5 + 1 is 2, a B
    assert (item["image"][0].numpy() == written["emnist-letters-test"][0][6].T).all()
    assert "less 1" in data.protocol()["labels"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"\x00\x00\x0d" + data[3:], r"begins with 00000d03, not 00000803"),
        (lambda data: data[:3] + b"\x01" + data[4:], r"begins with 00000801, not 00000803"),
        (lambda data: data[:-7], r"has 11193 values, but its sizes are 20 x 28 x 20"),
        (lambda data: data + b"x", r"has 11201 values, but its sizes are 20 x 28 x 20"),
        (lambda data: data[:9], "is cut off in its head"),
        (lambda data: b"", "is cut off in its head"),
    ],
)
def test_a_wrong_idx_file_is_named(tmp_path, change, message):
    write_idx(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=rf"t10k-images-idx3-ubyte: ({message})"):
        data_of(tmp_path, "idx")


def test_truncated_gzip_unequal_counts_and_strange_labels(tmp_path):
    write_idx(tmp_path, pack=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz: cannot be read"):
        data_of(tmp_path, "idx")
    path.write_bytes(whole)
    labels = tmp_path / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx_bytes(np.zeros(19, np.uint8))))
    with pytest.raises(UserError, match=r"t10k-labels.*: 19 labels, but t10k-images-idx3-ubyte\.gz has 20 pictures"):
        data_of(tmp_path, "idx")
    strange = np.zeros(20, np.uint8)
    strange[4] = 10
    labels.write_bytes(gzip.compress(idx_bytes(strange)))
    with collecting() as problems:
        data = data_of(tmp_path, "idx")
    assert [(problem.kind, problem.path.name, problem.text) for problem in problems] == [
        ("wrong label", "4", "label 10 is outside 0..9")
    ]
    assert len(data.listing.parts["test"]) == 19


def test_two_data_sets_below_one_root_are_not_mixed_up(tmp_path):
    with pytest.raises(UserError, match=r"has no train-images-idx3-ubyte, with \.gz or not"):
        data_of(tmp_path, "idx")
    write_idx(tmp_path / "MNIST" / "raw")
    write_idx(tmp_path / "KMNIST" / "raw")
    with pytest.raises(UserError, match=r"KMNIST/raw/.* and .*MNIST/raw/.*: name the folder of one data set"):
        data_of(tmp_path, "idx")
