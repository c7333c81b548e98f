"""Multiple choice from held-out text, scored after a test.

Shapes: N items, K tokens of a context, C choices, L tokens of a choice.
"""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from nala_platform.metrics import ChoiceScores


class MultipleChoice(Callback):
    """Logs ``test/continuation4_pmi``, ``_norm`` and ``_norm_byte`` with their ``_stderr``: see `ChoiceScores`.

    The items are the data module's (its ``continuations()``, if it has that; ``None`` where the text is too short), and
    token losses the task's own ``step``, so what is scored is the very model that the perplexity is of, whatever its
    attention. It is a callback because it watches a test and takes no part in it: the task needs no second kind of
    batch. Each of several processes scores every world-size-th item, and the sums are over all of them.

    Args:
        batch_size: items scored at once; the network sees four times as many rows.
    """

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.batch_size = batch_size

    @torch.no_grad()
    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score this process's share of the items and log the result of all."""
        offered = getattr(getattr(trainer, "datamodule", None), "continuations", None)
        items: Any = offered() if offered else None
        if items is None:
            if trainer.is_global_zero:
                reason = "the test text is too short or too repetitive for its items" if offered else "no data for it"
                print(f"continuation4: {reason}; not scored")
            return
        scores = ChoiceScores().to(pl_module.device)
        share = range(trainer.global_rank, len(items.answer_N), trainer.world_size)
        for first in range(0, len(share), self.batch_size):
            rows = list(share[first : first + self.batch_size])
            context_NK, choice_NCL, bytes_NC, answer_N = (part[rows].to(pl_module.device) for part in items[:4])
            with trainer.precision_plugin.forward_context():
                given_NC = log_probability(pl_module, context_NK, choice_NCL)
                alone_NC = log_probability(pl_module, torch.full_like(context_NK[:, :1], items.eos), choice_NCL)
            scores.update(given_NC, alone_NC, choice_NCL.shape[-1], bytes_NC, answer_N)
        # reduced over processes already, so every rank logs the same numbers
        pl_module.log_dict({f"test/continuation4_{name}": value.float() for name, value in scores.compute().items()})


def log_probability(task: Any, context_NK: Tensor, choice_NCL: Tensor) -> Tensor:
    """``log p(choice | context)`` in nats, ``(N, C)`` float64: summed over a choice's tokens, each after all before it.

    Args:
        task: its ``step`` of ``tokens``, ``target`` of the last ones and ``bytes`` predicts each target's loss.
        context_NK: K >= 1 tokens before each item's choices.
        choice_NCL: the choices.
    """
    choices = choice_NCL.shape[1]
    target = choice_NCL.flatten(0, 1)
    tokens = torch.cat((context_NK.repeat_interleave(choices, 0), target[:, :-1]), 1)
    step = task.step({"tokens": tokens, "target": target, "bytes": torch.zeros_like(target)})
    return -step.prediction.double().sum(1).unflatten(0, (-1, choices))
