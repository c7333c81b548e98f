"""The layout ``ade20k``: the scene-parsing benchmark of 150 classes (Zhou et al. 2017, ADEChallengeData2016)."""

from pathlib import Path

from nala_platform.data.images.labels import Labels
from nala_platform.data.images.layouts.masks import CHOOSES, Found, inner_root
from nala_platform.data.images.layouts.segmentation_folders import pairs_of_folders
from nala_platform.data.problems import Excluded
from nala_platform.errors import UserError

# in the order of the benchmark's objectInfo150.txt, the first of each row's synonyms as papers write them
CLASSES = tuple(
    """wall, building, sky, floor, tree, ceiling, road, bed, windowpane, grass, cabinet, sidewalk, person, earth, door,
    table, mountain, plant, curtain, chair, car, water, painting, sofa, shelf, house, sea, mirror, rug, field, armchair,
    seat, fence, desk, rock, wardrobe, lamp, bathtub, railing, cushion, base, box, column, signboard, chest of drawers,
    counter, sand, sink, skyscraper, fireplace, refrigerator, grandstand, path, stairs, runway, case, pool table,
    pillow, screen door, stairway, river, bridge, bookcase, blind, coffee table, toilet, flower, book, hill, bench,
    countertop, stove, palm, kitchen island, computer, swivel chair, boat, bar, arcade machine, hovel, bus, towel,
    light, truck, tower, chandelier, awning, streetlight, booth, television receiver, airplane, dirt track, apparel,
    pole, land, bannister, escalator, ottoman, bottle, buffet, poster, stage, van, ship, fountain, conveyer belt,
    canopy, washer, plaything, swimming pool, stool, barrel, basket, waterfall, tent, bag, minibike, cradle, oven, ball,
    food, step, tank, trade name, microwave, pot, animal, bicycle, lake, dishwasher, screen, blanket, sculpture, hood,
    sconce, vase, traffic light, tray, ashcan, fan, pier, crt screen, plate, monitor, bulletin board, shower, radiator,
    glass, clock, flag""".replace("\n    ", " ").split(", ")
)
INNER = "ADEChallengeData2016"
LABELS = Labels(class_names=CLASSES, reduce_zero_label=True)


def ade20k(root: Path, excluded: Excluded) -> Found:
    """``images/{training,validation}/*.jpg`` and ``annotations/{training,validation}/*.png``, 0 meaning no class.

    ``root`` is that folder or the one that holds ``ADEChallengeData2016``. Papers report the validation split.

    Raises:
        UserError: a folder is missing, or this is the full data set, which the benchmark is not scored on.
    """
    if not any((root / inner / "annotations" / "training").is_dir() for inner in ("", INNER)):
        _refuse_full(root)
    root = inner_root(root, "annotations/training", INNER)
    return Found(
        {"train": pairs_of_folders(root, "training", excluded), "val": pairs_of_folders(root, "validation", excluded)},
        labels=LABELS,
        unlabelled=None,
        protocol={"test split": f"validation (the benchmark's test labels are not published), {CHOOSES}"},
    )


def _refuse_full(root: Path) -> None:
    for folder in (root, root / "ADE20K_2021_17_01"):
        for trace in ("index_ade20k.pkl", "index_ade20k.mat", "images/ADE"):
            if (folder / trace).exists():
                raise UserError(
                    f"data.root: {folder} is the full ADE20K ({trace}): its *_seg.png colour thousands of object "
                    "names, in folders of scenes, and are no masks of the 150 classes that papers report; get the "
                    "scene parsing benchmark, ADEChallengeData2016 (images/training, annotations/training)"
                )
