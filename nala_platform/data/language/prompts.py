"""Prompts for a language model to continue."""

import codecs
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Split
from nala_platform.data.language.encoding import NUL, not_utf8, nul_in_line, refuse_wide
from nala_platform.data.language.tokenizer import load_tokenizer
from nala_platform.data.language.tokens import Prompts
from nala_platform.data.loader import Sample
from nala_platform.data.order import Draw
from nala_platform.data.problems import BadFileError, Problem
from nala_platform.errors import UserError
from nala_platform.paths import PathOrName, StrPath


class PromptData(DataModule):
    """What ``nala generate`` and ``nala predict`` continue: prompts, in the tokens of the run that has learned them.

    The command line puts it in the place of the data that a language model was trained on, which need not be there.

    Args:
        tokenizer: the folder, ``RUN/tokenizer``.
        prompt: a text; empty begins a document.
        predict_path: a file with a prompt in each line; not together with ``prompt``. Lines that are not UTF-8 are
            skipped and named, as any bad file of a prediction is.
    """

    def __init__(self, tokenizer: str | PathOrName, prompt: str = "", predict_path: StrPath | None = None) -> None:
        super().__init__(batch_size=1, eval_batch_size=1, predict_batch_size=1, num_workers=0, seed=None)
        if prompt and predict_path is not None:
            raise UserError("data.prompt and data.predict_path cannot both say what to continue: leave one out")
        self.tokenizer = load_tokenizer(tokenizer, eos="optional")
        self.prompts: list[str | Problem] = (
            [prompt] if predict_path is None else _lines(Path(predict_path).expanduser())
        )

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`; there is nothing to train on or to score."""
        if split != "predict":
            raise UserError("data.class_path PromptData holds prompts alone: use it with nala predict or generate")
        return Readable(self.prompts, self.tokenizer)

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        return {"data": "prompts"}

    def baselines(self) -> dict[str, dict[str, float]]:
        """None."""
        return {}


class Readable(Dataset[Sample]):
    """Prompts, and what is wrong with those that cannot be read, in the order of their lines.

    Args:
        prompts: a text, or the problem of a line without one.
        tokenizer: see `Prompts`.
    """

    def __init__(self, prompts: list[str | Problem], tokenizer: Any) -> None:
        self.problems = {index: prompt for index, prompt in enumerate(prompts) if isinstance(prompt, Problem)}
        self.prompts = Prompts([prompt if isinstance(prompt, str) else "" for prompt in prompts], tokenizer)

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, draw: Draw) -> Sample:
        if draw.index in self.problems:
            raise BadFileError(self.problems[draw.index])
        return self.prompts[draw]


def _lines(path: Path) -> list[str | Problem]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"data.predict_path: {path}: {error.strerror}: give a text file, a prompt a line") from error
    refuse_wide(path, data)
    prompts: list[str | Problem] = []
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).splitlines(), 1):
        if line.strip():
            prompts.append(_prompt(line, path, number))
    if not prompts:
        raise UserError(f"data.predict_path: {path} holds no prompt: write one in each line")
    return prompts


def _prompt(line: bytes, path: Path, number: int) -> str | Problem:
    if NUL in line:
        return nul_in_line(path, number)
    try:
        return line.decode()
    except UnicodeDecodeError:
        return not_utf8(path, number)
