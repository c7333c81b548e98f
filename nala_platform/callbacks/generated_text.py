"""What a language model writes."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from transformers import TextStreamer

from nala_platform.errors import UserError
from nala_platform.paths import shown
from nala_platform.runs import CHECKPOINTS, TOKENIZER, write_atomic


class GeneratedText(Callback):
    """Writes ``sample.txt`` after a test, and the tokenizer beside the weights; prediction prints text as it comes and
    writes ``predictions.txt``.

    Args:
        prompt: what the sample continues.
    """

    def __init__(self, prompt: str = "The ") -> None:
        super().__init__()
        self.prompt = prompt
        self._texts: list[str] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the tokenizer: without it the weights say nothing."""
        folder = Path(trainer.default_root_dir) / TOKENIZER
        if trainer.is_global_zero:
            _check(folder, _tokenizer(trainer))
            _tokenizer(trainer).save_pretrained(folder)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse weights that have learned other tokens than the data has now."""
        self._check_run(trainer)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `on_validation_start`."""
        self._check_run(trainer)

    def _check_run(self, trainer: Trainer) -> None:
        if trainer.ckpt_path and Path(trainer.ckpt_path).parent.name == CHECKPOINTS:
            _check(Path(trainer.ckpt_path).parent.parent / TOKENIZER, _tokenizer(trainer))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue the prompt."""
        if not trainer.is_global_zero:
            return
        tokenizer = _tokenizer(trainer)
        tokens = tokenizer(self.prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        predict: Any = pl_module.predict
        with torch.no_grad():
            written = predict({"tokens": tokens.to(pl_module.device), "name": [self.prompt]})["tokens"]
        write_atomic(Path(trainer.default_root_dir) / "sample.txt", tokenizer.decode(written[0]) + "\n")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print tokens as they come."""
        streamer = TextStreamer(_tokenizer(trainer), skip_special_tokens=True)
        setattr(pl_module, "streamer", streamer)  # noqa: B010 - a task's own, not every LightningModule's

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Keep the text of a prompt, as it was printed."""
        for tokens in outputs["tokens"]:
            self._texts.append(_tokenizer(trainer).decode(tokens, skip_special_tokens=True))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the texts and say where, apart from the text itself."""
        if trainer.is_global_zero:
            path = Path(trainer.default_root_dir) / "predictions.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, "\n".join(self._texts) + "\n")
            print(f"predictions: {shown(path)}", file=sys.stderr)


def _check(folder: Path, tokenizer: Any) -> None:
    """Whether the tokenizer that a run has kept, if any, is this one."""
    kept = folder / "tokenizer.json"
    if not kept.is_file():
        return
    ours = json.loads(tokenizer.backend_tokenizer.to_str())
    theirs = json.loads(kept.read_text(encoding="utf-8"))
    if any(ours[key] != theirs[key] for key in ("model", "normalizer", "pre_tokenizer")):
        raise UserError(
            f"the data makes other tokens now than the run has learned, which are in {folder}: put the training text "
            f"back as it was, or give --data.tokenizer {folder} where the data takes one"
        )


def _tokenizer(trainer: Trainer) -> Any:
    return getattr(trainer, "datamodule").tokenizer  # noqa: B009 - not in the Trainer's type
