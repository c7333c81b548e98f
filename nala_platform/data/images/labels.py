"""From the indices stored in a mask to the labels that a network is trained on.

Shapes: H W pixels, C classes.
"""

import colorsys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from nala_platform.data.images.image_file import ColorMap
from nala_platform.data.problems import BadFileError, Problem
from nala_platform.errors import UserError

FOREGROUND_255 = (
    "the masks hold only 0 and 255: foreground stored as 255 would be ignored, not learned; store it as 1 (divide the "
    "masks by 255), or say so with --data.labels.mapping '{0: 0, 255: 1}'"
)
_REFUSED = -(2**31)  # stands in the table of labels for a stored value that has none


@dataclass(frozen=True)
class Labels:
    """What the values in the masks mean.

    Stored index k becomes label k; with ``reduce_zero_label`` 0 becomes ``ignore_index`` and k becomes k - 1, once,
    here. ``ignore_index`` itself stays what it is. With a ``mapping``, that alone decides.

    Attributes:
        num_classes: C >= 2, the ignored one not counted; left out, the number of ``class_names``.
        class_names: C names; left out, the indices.
        ignore_index: stored value, and label, of pixels that enter neither loss nor score.
        reduce_zero_label: whether stored 0 means "no class" (ADE20K).
        color_map: for coloured masks, the colour of each stored index; one more at the end stands for ignored pixels.
        mapping: the label, or ``ignore_index``, of each stored value, such as ``{0: 0, 255: 1}``.
        unmapped: whether a stored value that is not in the mapping is an error or an ignored pixel.
        colors: C colours to draw the classes in; left out, those of ``color_map``, or hues spread evenly.
    """

    num_classes: int = 0
    class_names: tuple[str, ...] = ()
    ignore_index: int = 255
    reduce_zero_label: bool = False
    color_map: ColorMap = ()
    mapping: dict[int, int] = field(default_factory=dict)
    unmapped: Literal["refused", "ignored"] = "refused"
    colors: ColorMap = ()

    def __post_init__(self) -> None:
        count = self.num_classes or len(self.class_names)
        if count == 0:
            raise UserError("data.labels needs num_classes (2 or more) or class_names")
        if count < 2:
            key = "num_classes" if self.num_classes else "class_names"
            raise UserError(f"data.labels.{key} says {count}: it takes 2 or more, and the background is one")
        for key in ("class_names", "colors"):
            if getattr(self, key) and len(getattr(self, key)) != count:
                raise UserError(f"data.labels has {len(getattr(self, key))} {key}, but num_classes is {count}")
        if self.reduce_zero_label and 0 <= self.ignore_index < count:
            raise UserError(
                f"data.labels.ignore_index {self.ignore_index} is also a class after reduce_zero_label: use 255"
            )
        stored = count + int(self.reduce_zero_label)
        if self.color_map and len(self.color_map) not in (stored, stored + 1):
            raise UserError(
                f"data.labels.color_map has {len(self.color_map)} colours: it needs {stored}, one for each index, "
                f"or {stored + 1} with the one of ignored pixels"
            )
        # a frozen dataclass fills what was left out in this way
        object.__setattr__(self, "num_classes", count)
        object.__setattr__(self, "class_names", self.class_names or tuple(str(index) for index in range(count)))
        self._check_mapping()

    def _check_mapping(self) -> None:
        if self.mapping and (self.reduce_zero_label or self.color_map):
            raise UserError("data.labels.mapping says all: leave out reduce_zero_label and color_map")
        if not self.mapping and self.unmapped == "ignored":
            raise UserError("data.labels.unmapped is 'ignored', but there is no data.labels.mapping")
        for stored, label in self.mapping.items():
            if stored < 0 or not (0 <= label < self.num_classes or label == self.ignore_index):
                raise UserError(
                    f"data.labels.mapping: {stored} -> {label}, but it leads from 0 or more to "
                    f"0..{self.num_classes - 1} or the ignore_index {self.ignore_index}"
                )

    def trained(self, stored_HW: np.ndarray, name: str) -> np.ndarray:
        """The labels ``(H, W)`` int64 of stored indices: 0..C-1 or ``ignore_index``.

        Args:
            stored_HW: indices, none negative, as `read_indices` gives them.
            name: of the file, for the message.

        Raises:
            BadFileError: a value is neither a class nor ``ignore_index``.
        """
        count_V = np.bincount(stored_HW.ravel())
        label_V = self._table(len(count_V))
        wrong_V = (count_V > 0) & (label_V == _REFUSED)
        if wrong_V.any():
            raise BadFileError(Problem("wrong label", Path(name), self._wrong_label(count_V, wrong_V)))
        return label_V[stored_HW]

    def _table(self, length: int) -> np.ndarray:
        """The label of each stored value below ``length``."""
        label_V = np.full(length, self.ignore_index if self.unmapped == "ignored" else _REFUSED, np.int64)
        if self.mapping:
            for stored, label in self.mapping.items():
                label_V[stored : stored + 1] = label  # nothing beyond the end
            return label_V
        shift = int(self.reduce_zero_label)
        known = min(length, self.num_classes + shift)
        label_V[:known] = np.arange(known) - shift
        label_V[:shift] = self.ignore_index
        if self.color_map:
            label_V[self.num_classes + shift :] = self.ignore_index
        if 0 <= self.ignore_index < length:
            label_V[self.ignore_index] = self.ignore_index
        return label_V

    def __str__(self) -> str:
        """From stored values to labels, in words."""
        if self.mapping:
            others = f"others -> {self.ignore_index}" if self.unmapped == "ignored" else "others refused"
            return ", ".join([*(f"{stored} -> {label}" for stored, label in self.mapping.items()), others])
        last = self.num_classes - 1
        if self.reduce_zero_label:
            return f"0 -> {self.ignore_index}, 1..{last + 1} -> 0..{last}, {self.ignore_index} stays, others refused"
        return f"0..{last} and {self.ignore_index} stay, others refused"

    def _wrong_label(self, count_V: np.ndarray, wrong_V: np.ndarray) -> str:
        values = np.flatnonzero(wrong_V)
        if not self.mapping and values.tolist() == [255] and not count_V[1:255].any():
            return FOREGROUND_255
        listed = ", ".join(map(str, values[:5])) + (", …" if len(values) > 5 else "")
        found = f"label {listed} in {count_V[wrong_V].sum()} pixels"
        if self.mapping:
            known = ", ".join(map(str, sorted(self.mapping)))
            return f"{found}, but data.labels.mapping knows {known} alone: add it or mend the mask"
        most = self.num_classes - 1 + int(self.reduce_zero_label)
        return (
            f"{found}, but with data.labels.num_classes {self.num_classes} masks may hold 0..{most} and the "
            f"ignore_index {self.ignore_index}: raise num_classes or mend the mask"
        )

    def untrained(self) -> str:
        """What to say where the ignored label takes the place of a class, as 255 does with more than 255 classes."""
        if self.mapping or not 255 == self.ignore_index < self.num_classes:
            return ""
        return (
            f"class 255 ({self.class_names[255]}) is ignored, as its number is data.labels.ignore_index: to have it "
            "trained, store ignored pixels as 65535 and set --data.labels.ignore_index 65535 --model.ignore_index 65535"
        )

    def palette(self) -> ColorMap:
        """A colour for each class: see ``colors``."""
        if self.colors:
            return self.colors
        first = int(self.reduce_zero_label)
        if self.color_map:
            return self.color_map[first : first + self.num_classes]
        # steps of the golden ratio keep neighbouring classes apart, however many there are
        hues = [(index * 0.618034) % 1 for index in range(self.num_classes)]
        colours = [
            colorsys.hsv_to_rgb(hue, 0.6 + 0.3 * (k % 2), 0.95 - 0.3 * (k % 3 == 2)) for k, hue in enumerate(hues)
        ]
        return tuple((round(red * 255), round(green * 255), round(blue * 255)) for red, green, blue in colours)


def foreground_at_255(values: set[int]) -> bool:
    """Whether a mask with these stored values holds 0 and 255, or 255, alone."""
    return 255 in values and values <= {0, 255}
