"""The loss of language modelling where padding and the end of a document are the same token."""

import pytest
import torch
from nala_platform.tasks.language_modeling import LanguageModelingTask
from torch.utils.data import default_collate

from nala_platform.data.order import Draw
from nala_platform.data.tokens import Blocks, Stream, train_bpe
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
