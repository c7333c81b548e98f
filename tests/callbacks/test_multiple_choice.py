"""Multiple choice as it is scored, against full forwards one by one in numpy."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nala_platform.tasks.language_modeling import LanguageModelingTask
from torch import nn

from nala_platform.callbacks.multiple_choice import MultipleChoice, log_probability
from nala_platform.data.language.continuation import Items
from nala_platform.models.language import causal_lm
from nala_platform.optim import WarmupCosine

EOS, WORDS = 0, 23


def items(count: int, seed: int = 0) -> Items:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, low: int = 1, high: int = WORDS) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    return Items(draw(count, 40), draw(count, 4, 20), draw(count, 4, low=20, high=99), draw(count, low=0, high=4), EOS)


def task(network: nn.Module) -> LanguageModelingTask:
    return LanguageModelingTask(network, torch.optim.AdamW, WarmupCosine).eval()


def tiny(attention: str) -> nn.Module:
    torch.manual_seed(0)
    return causal_lm("nano", vocab_size=WORDS, attention=attention)


class Knows(nn.Module):
    """Gives what really follows a token a chance near one; ``sure`` 0 knows nothing."""

    def __init__(self, truth: Items, sure: float) -> None:
        super().__init__()
        rows = zip(truth.context_NK, truth.choice_NCL, truth.answer_N, strict=True)
        self.next = {tuple(context.tolist()): choices[answer] for context, choices, answer in rows}
        self.sure = sure

    def forward(self, input_ids: torch.Tensor, logits_to_keep: int) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, WORDS)
        if input_ids.shape[1] > 40:
            for row, tokens in enumerate(input_ids.tolist()):
                logits[row, range(39, 59), self.next[tuple(tokens[:40])]] = self.sure
        return SimpleNamespace(logits=logits[:, -logits_to_keep:])


def score(network: nn.Module, truth: Items | None, *, rank: int = 0, world: int = 1, **options) -> dict[str, float]:
    logged: dict[str, float] = {}
    model = task(network)
    model.log_dict = lambda values: logged.update({name: float(value) for name, value in values.items()})
    trainer = SimpleNamespace(
        datamodule=SimpleNamespace(continuations=lambda: truth),
        global_rank=rank, world_size=world, is_global_zero=rank == 0,
        precision_plugin=SimpleNamespace(forward_context=nullcontext),
    )  # fmt: skip
    MultipleChoice(**options).on_test_epoch_end(trainer, model)
    return logged


@torch.no_grad()
def numpy_log_probability(network: nn.Module, context: list[int], choice: list[int]) -> float:
    logits = network(input_ids=torch.tensor([context + choice])).logits[0].double().numpy()
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return sum(logs[len(context) - 1 + place, token] for place, token in enumerate(choice))


@pytest.mark.parametrize("attention", ["nala", "softmax"])
def test_scores_are_those_of_full_forwards_one_by_one(attention: str):
    network, truth = tiny(attention).eval(), items(11)
    given, alone = (
        np.array([
            [numpy_log_probability(network, before, choice) for choice in choices]
            for before, choices in zip(contexts, truth.choice_NCL.tolist(), strict=True)
        ])
        for contexts in (truth.context_NK.tolist(), [[EOS]] * 11)
    )  # fmt: skip
    with torch.no_grad():
        found = log_probability(task(network), truth.context_NK, truth.choice_NCL)
    np.testing.assert_allclose(found.numpy(), given, rtol=1e-5)
    logged = score(network, truth, batch_size=4)
    answer = truth.answer_N.numpy()
    for name, value in {"pmi": given - alone, "norm": given / 20, "norm_byte": given / truth.bytes_NC.numpy()}.items():
        share = (value.argmax(1) == answer).mean()
        assert logged[f"test/continuation4_{name}"] == pytest.approx(share)
        assert logged[f"test/continuation4_{name}_stderr"] == pytest.approx((share * (1 - share) / 11) ** 0.5)


def test_one_that_knows_the_text_is_always_right_and_one_that_knows_nothing_guesses():
    truth = items(40)
    known = score(Knows(truth, 9.0), truth)
    assert [known[f"test/continuation4_{name}"] for name in ("pmi", "norm", "norm_byte")] == [1, 1, 1]
    blank = score(Knows(truth, 0.0), truth)
    assert blank["test/continuation4_pmi"] == blank["test/continuation4_norm"] == 0.25
    assert abs(blank["test/continuation4_norm_byte"] - 0.25) < 0.25


def test_the_batch_size_changes_nothing_and_shares_add_up():
    network, truth = tiny("nala"), items(10)
    whole, ones = score(network, truth, batch_size=10), score(network, truth, batch_size=1)
    assert whole == ones
    shares = [score(network, truth, rank=rank, world=3)["test/continuation4_pmi"] for rank in range(3)]
    assert np.dot(shares, [4, 3, 3]) / 10 == pytest.approx(whole["test/continuation4_pmi"])


def test_a_text_without_items_is_said(capsys: pytest.CaptureFixture[str]):
    assert score(tiny("nala"), None) == {}
    assert "too short" in capsys.readouterr().out
    MultipleChoice().on_test_epoch_end(SimpleNamespace(datamodule=None, is_global_zero=True), task(tiny("nala")))
    assert "continuation4: no data for it; not scored" in capsys.readouterr().out


@pytest.mark.slow
def test_two_processes_score_each_item_once(zygote, tmp_path: Path):
    def nala(*words: str) -> Path:
        done = zygote.call(tmp_path, *words, "--trainer.accelerator", "cpu")
        return tmp_path / re.findall(r"run folder: (\S+)", done.stdout)[-1]

    def scores(folder: Path) -> dict[str, float]:
        found = json.loads((folder / "summary.json").read_text())["metrics"]
        return {name: value for name, value in found.items() if "continuation4" in name}

    run = nala("fit", "--task", "lm", "--config", "smoke", "--trainer.devices", "1")
    shared = nala("test", str(run), "--trainer.devices", "2", "--trainer.strategy", "ddp")
    assert scores(run) == scores(shared) and len(scores(run)) == 6
