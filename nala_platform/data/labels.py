"""From the indices stored in a mask to the labels that a network is trained on.

Shapes: H W pixels, C classes.
"""

import colorsys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nala_platform.data.image_file import ColorMap
from nala_platform.data.problems import BadFileError, Problem
from nala_platform.errors import UserError

FOREGROUND_255 = (
    "the masks hold only 0 and 255: foreground stored as 255 would be ignored, not learned; store it as 1 (divide the "
    "masks by 255)"
)


@dataclass(frozen=True)
class Labels:
    """What the values in the masks mean.

    Stored index k becomes label k; with ``reduce_zero_label`` 0 becomes ``ignore_index`` and k becomes k - 1, once,
    here. ``ignore_index`` itself stays what it is.

    Attributes:
        num_classes: C >= 2, the ignored one not counted; left out, the number of ``class_names``.
        class_names: C names; left out, the indices.
        ignore_index: stored value, and label, of pixels that enter neither loss nor score.
        reduce_zero_label: whether stored 0 means "no class" (ADE20K).
        color_map: for coloured masks, the colour of each stored index; one more at the end stands for ignored pixels.
    """

    num_classes: int = 0
    class_names: tuple[str, ...] = ()
    ignore_index: int = 255
    reduce_zero_label: bool = False
    color_map: ColorMap = ()

    def __post_init__(self) -> None:
        count = self.num_classes or len(self.class_names)
        if count < 2:
            raise UserError("data.labels needs num_classes (2 or more) or class_names")
        if self.class_names and len(self.class_names) != count:
            raise UserError(f"data.labels has {len(self.class_names)} class_names, but num_classes is {count}")
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

    def trained(self, stored_HW: np.ndarray, name: str) -> np.ndarray:
        """The labels ``(H, W)`` int64 of stored indices: 0..C-1 or ``ignore_index``.

        Args:
            stored_HW: indices, none negative, as `read_indices` gives them.
            name: of the file, for the message.

        Raises:
            BadFileError: a value is neither a class nor ``ignore_index``.
        """
        count_V = np.bincount(stored_HW.ravel())
        label_V = np.arange(len(count_V), dtype=np.int64) - int(self.reduce_zero_label)
        if self.reduce_zero_label:
            label_V[0] = self.ignore_index
        if self.color_map:
            label_V[self.num_classes + int(self.reduce_zero_label) :] = self.ignore_index
        if 0 <= self.ignore_index < len(label_V):
            label_V[self.ignore_index] = self.ignore_index
        wrong_V = (count_V > 0) & ((label_V < 0) | (label_V >= self.num_classes)) & (label_V != self.ignore_index)
        if wrong_V.any():
            raise BadFileError(Problem("wrong label", Path(name), self._wrong_label(count_V, wrong_V)))
        return label_V[stored_HW]

    def _wrong_label(self, count_V: np.ndarray, wrong_V: np.ndarray) -> str:
        values = np.flatnonzero(wrong_V)
        if values.tolist() == [255] and not count_V[1:255].any():
            return FOREGROUND_255
        listed = ", ".join(map(str, values[:5])) + (", …" if len(values) > 5 else "")
        most = self.num_classes - 1 + int(self.reduce_zero_label)
        return (
            f"label {listed} in {count_V[wrong_V].sum()} pixels, but with data.labels.num_classes "
            f"{self.num_classes} masks may hold 0..{most} and the ignore_index {self.ignore_index}: raise num_classes "
            "or mend the mask"
        )

    def palette(self) -> ColorMap:
        """A colour for each class: those of the colour map, or hues spread evenly."""
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
