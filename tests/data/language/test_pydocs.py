"""Tokens, blocks, and the embedded text."""

import math

import numpy as np
import pytest
import torch

from nala_platform.data.language.baselines import unigram
from nala_platform.data.language.pydocs import PydocsData, pydocs, seen
from nala_platform.data.language.tokens import Blocks, Stream, _by_places, encode, train_bpe
from nala_platform.data.order import Draw
from nala_platform.errors import UserError
from nala_platform.metrics import LanguageScores

TEXTS = ["naïve 日本 text", "", "a  b\n"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(["plain words, plain text"] * 3, 270)


def test_any_text_comes_back_and_its_bytes_add_up(tokenizer):
    stream = Stream(TEXTS, tokenizer)
    assert stream.bytes_S.sum() == sum(len(text.encode()) for text in TEXTS)
    assert (stream.token_S == tokenizer.eos_token_id).sum() == len(TEXTS) + 1
    assert tokenizer.decode(stream.token_S.tolist(), skip_special_tokens=True) == "".join(TEXTS)


def test_the_quick_way_to_encode_gives_what_the_slow_one_does(tokenizer):
    texts = [*TEXTS, "plain <|endoftext|> words", "x" * 5000]
    for (token_N, bytes_N), (slow_token_N, slow_bytes_N), text in zip(
        encode(texts, tokenizer), _by_places(texts, tokenizer), texts, strict=True
    ):
        assert token_N.tolist() == slow_token_N.tolist()
        assert bytes_N.sum() == slow_bytes_N.sum() == len(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(("context", "stride"), [(5, 5), (5, 2), (4, 1), (100, 100)])
def test_every_token_is_a_target_once_after_what_precedes_it(tokenizer, context, stride):
    stream = Stream(TEXTS, tokenizer)
    blocks = Blocks(stream, context=context, stride=stride)
    found = []
    for index in range(len(blocks)):
        sample = blocks[Draw(index, epoch=0)]
        kept = sample["target"] != -100
        assert torch.equal(kept, sample["bytes"] >= 0)
        found += sample["target"][kept].tolist()
        place = len(found)
        seen = int(kept.nonzero().max()) + 1
        assert sample["tokens"][:seen].tolist() == stream.token_S[place - seen : place].tolist()
    # eos is both what fills up and what ends documents: it counts where it ends one
    assert found == stream.token_S[1:].tolist()


@pytest.mark.parametrize("batch_size", [5, 8])
def test_an_epoch_after_a_resume_covers_every_token(batch_size):
    data = PydocsData(vocab_size=300, batch_size=batch_size, seed=0)
    blocks = -(-data.protocol()["tokens"]["train"] // 256)
    assert blocks % batch_size
    loader = data.train_dataloader()
    # stopped at 90 % of epoch 0
    order, done = loader.sampler, round(0.9 * len(loader))
    order.resume(epoch=0, consumed=done * batch_size)
    assert sum(1 for _ in loader) == len(loader) - done
    order.set_epoch(1)
    targets = [batch["target"] for batch in loader]
    assert len(targets) == len(loader) == -(-blocks // batch_size)
    assert sum(int((target != -100).sum()) for target in targets) == data.protocol()["tokens"]["train"]


def test_the_parts_are_the_text_cut_into_chunks():
    parts = pydocs()
    assert len(parts["test"]) == len(parts["val"]) and not set(parts["test"]) & set(parts["train"])
    assert sum(len(chunk) for chunks in parts.values() for chunk in chunks) > 400_000


def test_scores_are_those_of_a_uniform_guess_whatever_the_batches():
    scores = LanguageScores()
    for tokens in (3, 1):
        nats = torch.full((1, 4), math.log(8.0))
        width = torch.tensor([[2] * tokens + [-1] * (4 - tokens)])
        scores.update(nats, width)
    found = scores.compute()
    assert found["perplexity"].item() == pytest.approx(8.0)
    assert found["bits_per_byte"].item() == pytest.approx(1.5)


def test_unigram_is_the_entropy_of_equal_tokens():
    stream = Stream([], type("Tokenizer", (), {"eos_token_id": 0}))
    stream.token_S, stream.bytes_S = np.array([0, 0, 1, 2, 3]), np.ones(5, dtype=np.int64)
    assert unigram(stream, stream, 4)["perplexity"] == pytest.approx(4.0)


def test_text_that_stands_in_training_too_is_told():
    training, new = np.arange(100), np.arange(1000, 1100)
    streams = [Stream([], type("Tokenizer", (), {"eos_token_id": 0})) for _ in range(2)]
    streams[0].token_S, streams[1].token_S = training, np.concatenate([training[20:70], new])
    # 50 known tokens hold 19 whole spans of 32, and 150 hold 119
    assert seen(streams[1], streams[0]) == pytest.approx(19 / 119)
    told = PydocsData().protocol()["seen_in_training"]
    assert 0.3 < told["test, spans of 32 tokens"] < 0.45


def test_wrong_values_are_refused():
    with pytest.raises(UserError, match="257"):
        PydocsData(vocab_size=100)
    with pytest.raises(UserError, match="stride"):
        PydocsData(context=8, stride=9).items("val")
