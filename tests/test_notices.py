"""What of other libraries' output reaches a user of the command line."""

import logging
import os
import warnings

import pytest

from nala_platform.notices import quiet

VARIABLES = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS", "TQDM_DISABLE")


@pytest.fixture
def quieted(monkeypatch):
    """As at the start of a command, and undone after the test."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    names = ("lightning.pytorch", "lightning.fabric", "torch.utils.cpp_extension")
    levels = {name: logging.getLogger(name).level for name in names}
    with warnings.catch_warnings():
        warnings.resetwarnings()
        quiet()
        yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("quieted")
class TestQuiet:
    def test_deprecations_between_libraries_are_silent(self, capsys):
        for category in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
            warnings.warn("`torch.jit.trace` is deprecated", category, stacklevel=1)
        assert capsys.readouterr() == ("", "")

    def test_what_a_user_needs_is_one_line(self, capsys):
        warnings.warn("the disk is\n  nearly full", UserWarning, stacklevel=1)
        assert capsys.readouterr() == ("", "nala: warning: the disk is nearly full\n")

    def test_what_comes_with_every_compilation_is_silent(self, capsys):
        warnings.warn("Torchinductor does not support code generation for complex operators.", stacklevel=1)
        assert not logging.getLogger("torch.utils.cpp_extension").isEnabledFor(logging.WARNING)
        assert capsys.readouterr() == ("", "")

    def test_no_progress_bars_in_a_file(self):
        assert {name: os.environ[name] for name in VARIABLES} == dict.fromkeys(VARIABLES, "1")


def test_warnings_that_were_asked_for_are_shown(monkeypatch, capsys):
    monkeypatch.setattr("sys.warnoptions", ["default"])
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        before = warnings.showwarning
        quiet()
        assert warnings.showwarning is before
