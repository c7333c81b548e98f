"""Stored indices to labels (FAULTS G3, G4): shifted once, checked, named."""

import numpy as np
import pytest

from nala_platform.data.images.labels import Labels, foreground_at_255
from nala_platform.errors import UserError


def test_labels_stay_without_a_shift():
    stored = np.array([[0, 1, 2, 255]], np.int32)
    labels = Labels(num_classes=3).trained(stored, "m")
    assert labels.dtype == np.int64 and labels.tolist() == stored.tolist()


def test_zero_label_is_shifted_once():
    stored = np.array([[0, 1, 150, 255]], np.int32)
    labels = Labels(num_classes=150, reduce_zero_label=True).trained(stored, "m")
    assert labels.tolist() == [[255, 0, 149, 255]]


@pytest.mark.parametrize("ignore", [-1, -100, 254, 255, 1000])
def test_zero_label_goes_to_any_ignore_index(ignore):
    labels = Labels(num_classes=2, ignore_index=ignore, reduce_zero_label=True).trained(np.array([[0, 1, 2]]), "m")
    assert labels.tolist() == [[ignore, 0, 1]]


def test_a_class_may_be_the_ignored_one():
    assert Labels(num_classes=3, ignore_index=0).trained(np.array([[0, 1, 2]]), "m").tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("labels", "value"),
    [
        (Labels(num_classes=3), 200),
        (Labels(num_classes=3), 3),
        (Labels(num_classes=3, ignore_index=254), 255),
        (Labels(num_classes=3, reduce_zero_label=True), 4),
        (Labels(num_classes=256, ignore_index=1000), 65535),
    ],
)
def test_a_label_out_of_range_names_file_value_and_limit(labels, value):
    with pytest.raises(UserError) as caught:
        labels.trained(np.array([[0, 1, value]]), "annotations/train/x.png")
    message = str(caught.value)
    assert "annotations/train/x.png" in message and f"label {value} in 1 pixels" in message
    assert f"num_classes {labels.num_classes}" in message and "\n" not in message


def test_the_largest_shifted_label_is_allowed():
    assert Labels(num_classes=3, reduce_zero_label=True).trained(np.array([[3]]), "m").tolist() == [[2]]


def test_foreground_at_255_is_told_apart_from_a_wrong_label():
    with pytest.raises(UserError, match="foreground stored as 255"):
        Labels(num_classes=2, ignore_index=254).trained(np.array([[0, 255]]), "m")
    with pytest.raises(UserError, match="label 255"):
        Labels(num_classes=2, ignore_index=254).trained(np.array([[0, 1, 255]]), "m")
    assert foreground_at_255({0, 255}) and foreground_at_255({255})
    assert not foreground_at_255({0}) and not foreground_at_255({0, 1, 255})


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "num_classes"),
        ({"num_classes": 1}, "2 or more"),
        ({"num_classes": 3, "class_names": ("a", "b")}, "2 class_names"),
        ({"num_classes": 3, "colors": ((0, 0, 0),)}, "1 colors"),
        ({"num_classes": 3, "mapping": {7: 3}}, "7 -> 3, but it leads from 0 or more to 0..2"),
        ({"num_classes": 3, "mapping": {-1: 0}}, "-1 -> 0"),
        ({"num_classes": 3, "mapping": {1: 0}, "reduce_zero_label": True}, "leave out reduce_zero_label"),
        ({"num_classes": 3, "unmapped": "ignored"}, "there is no data.labels.mapping"),
        ({"num_classes": 3, "ignore_index": 2, "reduce_zero_label": True}, "ignore_index 2"),
        ({"num_classes": 3, "color_map": ((0, 0, 0),)}, "1 colours: it needs 3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(options, word):
    with pytest.raises(UserError, match=word):
        Labels(**options)


def test_names_and_number_complete_each_other():
    assert Labels(class_names=("sea", "land")).num_classes == 2
    assert Labels(num_classes=3).class_names == ("0", "1", "2")


def test_colour_map_with_an_extra_colour_for_ignored_pixels():
    labels = Labels(num_classes=2, color_map=((0, 0, 0), (9, 9, 9), (224, 224, 192)))
    assert labels.trained(np.array([[0, 1, 2]]), "m").tolist() == [[0, 1, 255]]
    assert labels.palette() == ((0, 0, 0), (9, 9, 9))
    shifted = Labels(num_classes=2, reduce_zero_label=True, color_map=((0, 0, 0), (9, 9, 9), (8, 8, 8)))
    assert shifted.trained(np.array([[0, 1, 2]]), "m").tolist() == [[255, 0, 1]]
    assert shifted.palette() == ((9, 9, 9), (8, 8, 8))


@pytest.mark.parametrize("classes", [2, 21, 150])
def test_palette_has_a_colour_for_each_class(classes):
    palette = Labels(num_classes=classes).palette()
    assert len(palette) == classes == len(set(palette))
    assert all(0 <= value <= 255 for colour in palette for value in colour)


def test_a_mapping_alone_decides():
    labels = Labels(num_classes=2, mapping={7: 0, 11: 1, 3: 255})
    assert labels.trained(np.array([[7, 11, 3]]), "m").tolist() == [[0, 1, 255]]
    assert labels.trained(np.array([[7]]), "m").tolist() == [[0]]
    with pytest.raises(UserError, match=r"m: label 0, 255 in 3 pixels, but data.labels.mapping knows 3, 7, 11 alone"):
        labels.trained(np.array([[0, 255, 255, 7]]), "m")
    assert str(labels) == "7 -> 0, 11 -> 1, 3 -> 255, others refused"


def test_values_that_are_not_mapped_may_be_ignored():
    labels = Labels(num_classes=2, mapping={7: 0, 11: 1}, unmapped="ignored")
    assert labels.trained(np.array([[0, 7, 11, 34, 255, 65535]]), "m").tolist() == [[255, 0, 1, 255, 255, 255]]
    assert str(labels) == "7 -> 0, 11 -> 1, others -> 255"


def test_the_meaning_in_words():
    assert str(Labels(num_classes=3)) == "0..2 and 255 stay, others refused"
    assert str(Labels(num_classes=150, reduce_zero_label=True)) == (
        "0 -> 255, 1..150 -> 0..149, 255 stays, others refused"
    )


def test_colours_to_draw_classes_in():
    assert Labels(num_classes=2, colors=((1, 2, 3), (4, 5, 6))).palette() == ((1, 2, 3), (4, 5, 6))
