"""ImageNet as people have it on disk, and what is wrong with it found at the door."""

import csv

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from nala_platform.data.images.image_folder import ImageFolderData, Pixels
from nala_platform.data.order import Draw
from nala_platform.data.problems import collecting
from nala_platform.errors import UserError

# ILSVRC2012_ID to wnid, in the devkit's manner: not the order of the sorted wnids; 4 is a hypernym
IDS = {1: "n02119789", 2: "n02100735", 3: "n01440764", 4: "n00001740"}
SORTED = ("n01440764", "n02100735", "n02119789")
TRUTH = [3, 1, 1, 2, 3]  # of the pictures 1..5
EXPECTED = [0, 2, 2, 1, 0]


def name_of(number):
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def data_of(root, **options):
    return ImageFolderData(str(root), **{"pixels": Pixels(size=16), "batch_size": 2, **options})


@pytest.fixture
def make(save, noise):
    """``make(folder)``: train class folders and a flat val folder there."""

    def build(folder):
        for label, wnid in enumerate(SORTED):
            for i in range(2):
                save(noise(20, 30, 10 * label + i), folder / "train" / wnid / f"{wnid}_{i}.JPEG")
        for number in range(1, 6):
            save(noise(20, 30, number), folder / "val" / name_of(number))
        save(noise(20, 30), folder / "test" / "ILSVRC2012_test_00000001.JPEG")

    return build


@pytest.fixture
def devkit_tree(tmp_path, make):
    make(tmp_path)
    folder = tmp_path / "ILSVRC2012_devkit_t12" / "data"
    folder.mkdir(parents=True)
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(f"{number}\n" for number in TRUTH))
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    rows = [(number, wnid, "a, b", 3 if number == 4 else 0) for number, wnid in IDS.items()]
    savemat(folder / "meta.mat", {"synsets": np.array(rows, dtype=kinds).reshape(-1, 1)})
    return tmp_path


@pytest.fixture
def kaggle_tree(tmp_path, make):
    make(tmp_path / "ILSVRC" / "Data" / "CLS-LOC")
    with (tmp_path / "LOC_val_solution.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["ImageId", "PredictionString"])
        # Kaggle's table is in no order, and may tell several boxes
        for number in (4, 1, 5, 3, 2):
            table.writerow([name_of(number)[:-5], f"{IDS[TRUTH[number - 1]]} 85 1 499 272 n99999999 1 2 3 4 "])
    return tmp_path


@pytest.fixture(params=["imagenet_devkit", "imagenet_kaggle"])
def flat(request):
    """A tree with a flat val folder: its root, its layout, and the folder that holds train and val."""
    if request.param == "imagenet_devkit":
        root = request.getfixturevalue("devkit_tree")
        return root, request.param, root
    root = request.getfixturevalue("kaggle_tree")
    return root, request.param, root / "ILSVRC" / "Data" / "CLS-LOC"


def test_the_labels_of_a_flat_val_folder(flat):
    root, layout, folder = flat
    data = data_of(root, layout=layout)
    assert data.class_names == SORTED and data.num_classes == 3
    batches = list(data.val_dataloader())
    names = [name for batch in batches for name in batch["name"]]
    assert names == [(folder / "val" / name_of(number)).relative_to(root).as_posix() for number in range(1, 6)]
    assert [label for batch in batches for label in batch["target"].tolist()] == EXPECTED
    assert [data.items("train")[Draw(i, 0)]["target"] for i in range(6)] == [0, 0, 1, 1, 2, 2]
    assert next(iter(data.predict_dataloader()))["name"] == ["ILSVRC2012_test_00000001.JPEG"]
    protocol = data.protocol()
    assert protocol["images"] == {"train": 6, "val": 5} and protocol["layout"] == layout
    assert protocol["labels"].startswith("the sorted names of the folders in train; of val, by ")
    assert (protocol["crop_pct"], protocol["interpolation"], protocol["classes"]) == (0.875, "bicubic", 3)
    assert protocol["test split"].startswith("val (there is no test part")
    assert data.baselines() == {"majority class": {"top1": pytest.approx(2 / 5)}}


def test_the_pixels_are_those_of_the_named_file(flat):
    root, layout, folder = flat
    item = data_of(root, layout=layout).whole("val")[Draw(3, 0)]
    expected = np.asarray(Image.open(folder / "val" / name_of(4)))
    assert (item["image"].permute(1, 2, 0).numpy() == expected).all() and item["target"] == 1


def test_a_class_of_val_that_train_lacks(flat):
    root, layout, folder = flat
    (folder / "train" / SORTED[1]).rename(folder / "train" / "n02100999")
    with pytest.raises(UserError, match=rf"{name_of(4)}: it is of the class n02100735, which has no folder in train"):
        data_of(root, layout=layout)


def test_missing_and_unknown_pictures_of_a_flat_folder_are_all_collected_and_can_be_left_out(flat, tmp_path_factory):
    root, layout, folder = flat
    (folder / "val" / name_of(2)).unlink()
    (folder / "val" / name_of(3)).rename(folder / "val" / "mine.JPEG")
    with collecting() as problems:
        data = data_of(root, layout=layout)
    assert {(problem.kind, problem.path.name) for problem in problems} == {
        ("missing", name_of(2)),
        ("missing", name_of(3)),
        ("mislabelled", "mine.JPEG"),
    }
    assert data.listing.parts["val"].label_N.tolist() == [0, 1, 0]
    with pytest.raises(UserError, match="3 files are not fit to be used"):
        data_of(root, layout=layout)
    exclude = tmp_path_factory.mktemp("lists") / "exclude.txt"
    exclude.write_text("# found by hand\n" + "".join(f"{problem.path}\n" for problem in problems))
    data = data_of(root, layout=layout, exclude=str(exclude))
    assert data.listing.parts["val"].label_N.tolist() == [0, 1, 0] and data.protocol()["excluded"] == 3


@pytest.mark.parametrize("line", ["4", "1001", "x"])  # a hypernym, and what is no id
def test_an_id_of_no_class_is_named(devkit_tree, line):
    path = devkit_tree / "ILSVRC2012_devkit_t12" / "data" / "ILSVRC2012_validation_ground_truth.txt"
    path.write_text("3\n1\n1\n2\n" + line)
    with pytest.raises(UserError, match=rf"{name_of(5)}: it is of the class ILSVRC2012_ID {line}, which has no folder"):
        data_of(devkit_tree, layout="imagenet_devkit")


def test_a_devkit_that_is_not_there_or_damaged(devkit_tree):
    folder = devkit_tree / "ILSVRC2012_devkit_t12"
    truth = folder / "data" / "ILSVRC2012_validation_ground_truth.txt"
    right = truth.read_bytes()
    truth.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"ground_truth\.txt cannot be read .*: unpack it again"):
        data_of(devkit_tree, layout="imagenet_devkit")
    truth.write_bytes(right)
    (folder / "data" / "meta.mat").write_bytes(b"no mat file")
    with pytest.raises(UserError, match=r"meta\.mat cannot be read as the devkit's table of classes"):
        data_of(devkit_tree, layout="imagenet_devkit")
    folder.rename(devkit_tree / "elsewhere")
    with pytest.raises(UserError, match=r"unpack ILSVRC2012_devkit_t12\.tar\.gz into it"):
        data_of(devkit_tree, layout="imagenet_devkit")


def test_kaggles_table_may_lie_in_ilsvrc_and_the_root_may_be_it(kaggle_tree):
    table = kaggle_tree / "LOC_val_solution.csv"
    assert len(data_of(kaggle_tree / "ILSVRC", layout="imagenet_kaggle").items("val")) == 5
    table.rename(kaggle_tree / "ILSVRC" / table.name)
    assert len(data_of(kaggle_tree, layout="imagenet_kaggle").items("val")) == 5
    (kaggle_tree / "ILSVRC" / table.name).write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="a table with the columns ImageId and PredictionString was expected"):
        data_of(kaggle_tree, layout="imagenet_kaggle")
    (kaggle_tree / "ILSVRC" / table.name).unlink()
    with pytest.raises(UserError, match=r"has no LOC_val_solution\.csv: put it beside ILSVRC"):
        data_of(kaggle_tree, layout="imagenet_kaggle")
    with pytest.raises(UserError, match="has no folder ILSVRC/Data/CLS-LOC: name the folder that holds ILSVRC"):
        data_of(kaggle_tree / "ILSVRC" / "Data", layout="imagenet_kaggle")


def test_pictures_of_every_mode_and_orientation_become_upright_rgb(class_tree, noise):
    """The traps of the real ImageNet: CMYK and grey JPEGs, a PNG named .JPEG; and an EXIF rotation."""
    folder = class_tree / "val" / "cat"
    grey = noise(40, 40)[..., 0]
    Image.fromarray(grey).save(folder / "00.jpeg", quality=100)
    Image.new("CMYK", (40, 40), (0, 255, 255, 0)).save(folder / "01.JPEG", quality=100)
    Image.fromarray(noise(12, 20)).save(folder / "02.JPEG", format="PNG")
    left = np.zeros((30, 50, 3), np.uint8)
    left[:, :25] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise when shown
    Image.fromarray(left).save(folder / "03.jpg", quality=100, exif=exif)
    part = data_of(class_tree).listing.parts["val"]
    read = {part.path(i).name: np.asarray(part.read(i)).astype(int) for i in range(len(part))}
    assert np.abs(read["00.jpeg"] - grey[..., None]).max() < 8 and read["00.jpeg"].shape == (40, 40, 3)
    assert np.abs(read["01.JPEG"][20, 20] - (255, 0, 0)).max() < 8  # no cyan, full magenta and yellow: red
    assert (read["02.JPEG"] == noise(12, 20)).all()
    assert read["03.jpg"].shape == (50, 30, 3) and read["03.jpg"][5].min() > 240 and read["03.jpg"][45].max() < 16


def test_an_excluded_picture_and_an_excluded_class_folder_are_left_out(class_tree, tmp_path):
    (class_tree / "train" / "emu").mkdir()
    exclude = tmp_path / "list.txt"
    exclude.write_text(f"train/emu\ntrain/cat/03.png\n{class_tree / 'val' / 'dog' / '00.png'}\n")
    data = data_of(class_tree, exclude=str(exclude))
    assert data.class_names == ("cat", "dog") and data.protocol()["images"] == {"train": 15, "val": 5}
    names = [data.items("val")[Draw(i, 0)]["name"] for i in range(5)]
    assert "val/dog/00.png" not in names and "val/dog/01.png" in names


def test_an_unknown_layout_is_answered_with_the_nearest(class_tree):
    with pytest.raises(UserError, match=r"data\.layout='imagenet_devkt' is unknown; did you mean 'imagenet_devkit'"):
        data_of(class_tree, layout="imagenet_devkt")


def test_a_train_folder_of_packed_classes_says_so(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "n01440764.tar").write_bytes(b"")
    with pytest.raises(UserError, match=r"has 0 class folders.*1 archives such as n01440764\.tar: unpack each"):
        data_of(tmp_path)


def test_ids_that_are_stored_as_doubles_are_the_same_ids(devkit_tree):
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")]
    rows = np.array([(float(number), wnid, 3.0 if number == 4 else 0.0) for number, wnid in IDS.items()], dtype=kinds)
    savemat(devkit_tree / "ILSVRC2012_devkit_t12" / "data" / "meta.mat", {"synsets": rows.reshape(-1, 1)})
    labels = data_of(devkit_tree, layout="imagenet_devkit").listing.parts["val"].label_N
    assert labels.tolist() == [SORTED.index(IDS[number]) for number in TRUTH]


def test_what_is_wrong_with_class_folders_can_be_left_out_by_its_path(class_tree, tmp_path, save, noise):
    for folder in ("train/ape", "val/gnu"):
        save(noise(20, 20), class_tree / folder / "0.png")
    (class_tree / "train" / "emu").mkdir()
    with collecting() as problems:
        data_of(class_tree)
    found = {(problem.kind, problem.path.relative_to(class_tree).as_posix()) for problem in problems}
    lacking = {("missing", "val/ape"), ("missing", "val/emu")}
    assert found == {("empty", "train/emu"), ("wrong label", "val/gnu")} | lacking
    exclude = tmp_path / "list.txt"
    exclude.write_text("".join(f"{problem.path}\n" for problem in problems))
    assert data_of(class_tree, exclude=str(exclude)).class_names == ("ape", "cat", "dog")


def test_a_class_that_is_left_out_of_train_is_left_out_of_val(class_tree, tmp_path, save, noise):
    for split in ("train", "val"):
        save(noise(20, 20), class_tree / split / "emu" / "0.png")
    exclude = tmp_path / "list.txt"
    exclude.write_text("train/emu\n")
    data = data_of(class_tree, exclude=str(exclude))
    assert data.class_names == ("cat", "dog") and {*data.listing.parts["val"].label_N} == {0, 1}
