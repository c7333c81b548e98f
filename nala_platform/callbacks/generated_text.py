"""What a language model writes."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from nala_platform.runs import write_atomic


class GeneratedText(Callback):
    """Writes ``sample.txt`` after a test, ``predictions.txt`` in prediction, and the tokenizer beside the weights.

    Args:
        prompt: what the sample continues.
    """

    def __init__(self, prompt: str = "The ") -> None:
        super().__init__()
        self.prompt = prompt
        self._texts: list[str] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the tokenizer: without it the weights say nothing."""
        if trainer.is_global_zero:
            _tokenizer(trainer).save_pretrained(Path(trainer.default_root_dir) / "tokenizer")

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

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Print and keep the text of a prompt."""
        for tokens in outputs["tokens"]:
            self._texts.append(_tokenizer(trainer).decode(tokens, skip_special_tokens=True))
            print(self._texts[-1], flush=True)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the texts and say where."""
        if trainer.is_global_zero:
            path = Path(trainer.default_root_dir) / "predictions.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, "\n".join(self._texts) + "\n")
            print(f"predictions: {path}")


def _tokenizer(trainer: Trainer) -> Any:
    return getattr(trainer, "datamodule").tokenizer  # noqa: B009 - not in the Trainer's type
