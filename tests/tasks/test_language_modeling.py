"""The loss of language modelling where padding and the end of a document are the same token."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from nala_platform.tasks.language_modeling import LanguageModelingTask
from torch.utils.data import default_collate

from nala_platform.data.language.tokens import Blocks, Stream, train_bpe
from nala_platform.data.order import Draw
from nala_platform.metrics import LanguageScores
from nala_platform.models.language import causal_lm
from nala_platform.optim import WarmupCosine

TEXTS = ["plain words", "", "", "plain text, and words"]


@pytest.fixture
def stream():
    return Stream(TEXTS, train_bpe(TEXTS, 262))


@pytest.fixture
def task():
    torch.manual_seed(0)
    return LanguageModelingTask(causal_lm(vocab_size=262), torch.optim.AdamW, WarmupCosine).eval()


def batch(stream):
    blocks = Blocks(stream, context=8, stride=8)
    found = default_collate([blocks[Draw(index, epoch=0)] for index in range(len(blocks))])
    # the last block is filled up with what ends documents too
    assert found["tokens"][-1, -1] == 0 and found["target"][-1, -1] == -100
    return found


def test_ends_of_documents_count_and_padding_does_not(task, stream):
    found = batch(stream)
    with torch.no_grad():
        step = task.step(found)
        logs = task.network(input_ids=found["tokens"]).logits.log_softmax(-1).flatten(0, 1)
    targets = stream.token_S[1:].tolist()
    assert targets.count(0) == len(TEXTS)
    # blocks of eight without overlap: target i stands at place i
    expected = -sum(float(logs[place, target]) for place, target in enumerate(targets)) / len(targets)
    assert step.count == len(targets)
    assert float(step.loss) == pytest.approx(expected, rel=1e-6)


def test_an_end_of_document_is_learnt_and_padding_is_not(task, stream):
    found = batch(stream)
    logits = torch.zeros(*found["tokens"].shape, 262, requires_grad=True)
    task.network.forward = lambda **_: type("Output", (), {"logits": logits})
    task.step(found).loss.backward()
    learnt = logits.grad.abs().sum(-1) > 0
    assert torch.equal(learnt, found["bytes"] >= 0)
    assert learnt[found["target"] == 0].all() and not learnt[found["target"] == -100].any()
    assert (logits.grad[found["target"] == 0][:, 0] < 0).all()


def test_what_stands_in_the_padding_changes_nothing(task, stream):
    found = batch(stream)
    other = found["tokens"].clone()
    other[-1, (found["target"][-1] != -100).sum() :] = 5
    with torch.no_grad():
        assert task.step(found).loss == task.step(found | {"tokens": other}).loss


def numpy_nats(task, stream, begin, first, last):
    """-log p of the tokens first..last of a stream, each after those from ``begin`` on, in float64."""
    tokens = torch.from_numpy(stream.token_S[begin:last])[None]
    with torch.no_grad():
        logits = task.network(input_ids=tokens).logits[0].numpy().astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return np.array([-logs[place - begin - 1, stream.token_S[place]] for place in range(first, last + 1)])


@pytest.mark.parametrize(("context", "stride"), [(8, 8), (8, 3), (8, 1), (50, 50)])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_scores_are_those_of_plain_numpy(task, stream, context, stride, batch_size):
    """Perplexity and bits per byte over overlapping windows: each token once, with what stands before it."""
    blocks, scores = Blocks(stream, context=context, stride=stride), LanguageScores()
    scores.bytes_per_word = 5.5
    samples = [blocks[Draw(index, epoch=0)] for index in range(len(blocks))]
    for start in range(0, len(samples), batch_size):
        with torch.no_grad():
            step = task.step(default_collate(samples[start : start + batch_size]))
        scores.update(step.prediction, step.target)
    last, nats = len(stream.token_S) - 1, []
    for first in range(1, last + 1, stride):
        end = min(first + stride - 1, last)
        nats.append(numpy_nats(task, stream, max(0, first - 1 + stride - context), first, end))
    nats = np.concatenate(nats)
    assert len(nats) == last
    width = sum(len(text.encode()) for text in TEXTS)
    found = {name: float(value) for name, value in scores.compute().items()}
    assert found["perplexity"] == pytest.approx(np.exp(nats.mean()), rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(nats.sum() / np.log(2) / width, rel=1e-6)
    assert found["word_perplexity"] == pytest.approx(np.exp(nats.sum() / (width / 5.5)), rel=1e-6)


def test_where_no_bytes_are_known_none_are_scored():
    scores = LanguageScores()
    scores.bytes_per_word = 5.5
    scores.update(torch.full((1, 3), 2.0), torch.tensor([[0, 0, -1]]))
    assert {name: float(value) for name, value in scores.compute().items()} == {
        "nll": 2.0,
        "perplexity": pytest.approx(np.exp(2.0)),
    }


def test_ready_tokens_without_a_tokenizer_are_trained_on_gone_on_with_and_exported(zygote, tmp_path: Path):
    for part in ("train", "val"):
        np.tile(np.arange(60, dtype=np.uint16), 60).tofile(tmp_path / f"{part}.bin")
    (tmp_path / "meta.pkl").write_bytes(b"not read")

    def nala(*words: str) -> str:
        return zygote.call(tmp_path, *words).stdout

    data = ["--data.root", ".", "--data.vocab_size", "64", "--data.context", "32"]
    small = ["--model.network.vocab_size", "64", "--model.network.size", "nano", "--model.schedule.warmup", "1"]
    short = ["--trainer.max_steps", "4", "--trainer.accumulate_grad_batches", "1", "--trainer.val_check_interval", "2"]
    trial = ["--config", "token_bins", "--config", "smoke", "--folder", "run", "--model.new_tokens", "5"]
    nala("fit", "--task", "lm", *trial, *data, *small, *short)
    summary = (tmp_path / "run" / "summary.json").read_text()
    assert "test/perplexity" in summary and "test/bits_per_byte" not in summary and "left out: which bytes" in summary
    text = nala("generate", "run", "--prompt", "7 8 9", "--new_tokens", "6")
    assert re.fullmatch(r"7 8 9( \d+){6}", text.strip())
    nala("export", "run", "hf")
    assert (tmp_path / "hf" / "tokenizer.json").is_file()
