"""What the tests of segmentation data share."""

import pytest

from nala_platform.errors import UserError


def refused(build, *words):
    """``build`` ends in one line that holds all of ``words``."""
    with pytest.raises(UserError) as caught:
        build()
    message = str(caught.value)
    assert "\n" not in message and all(str(word) in message for word in words), message


def targets(loader):
    """The first label map of each batch, by the name of its image."""
    return {batch["name"][0]: batch["target"][0].numpy() for batch in loader}
