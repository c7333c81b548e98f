"""Causal language modelling."""

import inspect
from typing import Any, cast

import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import nn

from nala_platform.errors import UserError
from nala_platform.metrics import LanguageScores

from .base import ScheduleCallable, Step, Task


class LanguageModelingTask(Task):
    """Cross-entropy of the next token; perplexity and bits per byte.

    Batches hold ``tokens (B, T)`` int64, ``target (B, T)`` int64, the token after each, -100 where it does not count,
    ``bytes (B, T)`` int64 of the target, -1 there, 0 for all where they are not known, and ``name``; targets of the
    last tokens alone are enough.
    For prediction: ``tokens (1, T)`` of any length.

    Args:
        network: a Hugging Face model: ``network(input_ids=…, logits_to_keep=T).logits (B, T, V)``, ``generate``.
        optimizer: see `Task`.
        schedule: see `Task`.
        new_tokens: that ``predict`` adds to a prompt.
        temperature: of its sampling; 0 takes the most likely token.
        top_k: it samples from so many of the most likely tokens.

    Attributes:
        streamer: what ``predict`` tells each token as it comes (Hugging Face's ``BaseStreamer``), or None.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: OptimizerCallable,
        schedule: ScheduleCallable,
        new_tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 50,
    ) -> None:
        for key, value, least in (("new_tokens", new_tokens, 1), ("temperature", temperature, 0), ("top_k", top_k, 1)):
            if value < least:
                raise UserError(f"model.{key} is {value}: it must be {least} or more")
        super().__init__(network=network, optimizer=optimizer, schedule=schedule, scores=LanguageScores())
        self.new_tokens, self.temperature, self.top_k = new_tokens, temperature, top_k
        self.streamer: Any = None
        takes_cache = "use_cache" in inspect.signature(network.forward).parameters
        self._without_cache: dict[str, Any] = {"use_cache": False} if takes_cache else {}  # nothing follows a batch
        self.save_hyperparameters(ignore=["network", "optimizer", "schedule"])

    def step(self, batch: dict[str, Any]) -> Step:
        """Loss of one batch, the mean over its tokens; see `Task.step`. The prediction is each token's loss."""
        target = batch["target"]
        outputs = self.network(input_ids=batch["tokens"], logits_to_keep=target.shape[1], **self._without_cache)
        logits = outputs.logits.float()
        nats = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
        count = int((batch["bytes"] >= 0).sum())
        return Step(nats.sum() / count, nats, batch["bytes"], count)

    def on_validation_epoch_start(self) -> None:
        """Learn how long a word is, where the data counts perplexity by words (its ``bytes_per_word(split)``)."""
        self._learn_words("val")

    def on_test_epoch_start(self) -> None:
        """See `on_validation_epoch_start`."""
        self._learn_words("test")

    def _learn_words(self, split: str) -> None:
        asked = getattr(getattr(self.trainer, "datamodule", None), "bytes_per_word", None)
        cast(LanguageScores, self.scores[split]).bytes_per_word = asked(split) if asked else None

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        """``{"name": list of prompts, "tokens": (1, T + new) int64}``, the prompt's included.

        Where the batch has an ``eos``, the text ends there, that token included.
        """
        sampled = self.temperature > 0
        options: dict[str, Any] = {"temperature": self.temperature, "top_k": self.top_k} if sampled else {}
        if "eos" in batch:
            options["eos_token_id"] = int(batch["eos"])
        tokens = cast(Any, self.network).generate(
            batch["tokens"],
            attention_mask=batch["tokens"].new_ones(batch["tokens"].shape),
            max_new_tokens=self.new_tokens,
            do_sample=sampled,
            pad_token_id=0,
            streamer=self.streamer,
            **options,
        )
        return {"name": batch["name"], "tokens": tokens}
