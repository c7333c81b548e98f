"""Prompts for a language model to continue."""

from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Split
from nala_platform.data.language.tokenizer import load_tokenizer
from nala_platform.data.language.tokens import Prompts
from nala_platform.data.loader import Sample
from nala_platform.errors import UserError


class PromptData(DataModule):
    """What ``nala generate`` and ``nala predict`` continue: prompts, in the tokens of the run that has learned them.

    The command line puts it in the place of the data that a language model was trained on, which need not be there.

    Args:
        tokenizer: the folder, ``RUN/tokenizer``.
        prompt: a text; empty begins a document.
        predict_path: a file with a prompt in each line; not together with ``prompt``.
    """

    def __init__(self, tokenizer: str, prompt: str = "", predict_path: str | None = None) -> None:
        super().__init__(batch_size=1, eval_batch_size=1, predict_batch_size=1, num_workers=0, seed=None)
        if prompt and predict_path is not None:
            raise UserError("data.prompt and data.predict_path cannot both say what to continue: leave one out")
        self.tokenizer = load_tokenizer(tokenizer, eos="optional")
        self.prompts = [prompt] if predict_path is None else _lines(Path(predict_path).expanduser())

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`; there is nothing to train on or to score."""
        if split != "predict":
            raise UserError("data.class_path PromptData holds prompts alone: use it with nala predict or generate")
        return Prompts(self.prompts, self.tokenizer)

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        return {"data": "prompts"}

    def baselines(self) -> dict[str, dict[str, float]]:
        """None."""
        return {}


def _lines(path: Path) -> list[str]:
    try:
        prompts = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"data.predict_path: {path}: {error.strerror}: give a text file, a prompt a line") from error
    except UnicodeDecodeError as error:
        raise UserError(f"data.predict_path: {path} is not UTF-8: convert it") from error
    if not prompts:
        raise UserError(f"data.predict_path: {path} holds no prompt: write one in each line")
    return prompts
