"""What the tests of super-resolution data share."""

from nala_platform.data.images.pair_folder import Folders, PairFolderData
from nala_platform.data.images.pairs import Patch

PATCH = Patch(size=6, repeats=1)


def data(root, layout, scale=4, **options):
    folders = Folders(layout=layout, **options.pop("folders", {}))
    return PairFolderData(None if root is None else str(root), folders=folders, scale=scale, patch=PATCH, **options)


def shown(tensor_13HW):
    return (tensor_13HW[0] * 255).round().byte().permute(1, 2, 0).numpy()
