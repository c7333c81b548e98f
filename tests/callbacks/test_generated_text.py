"""What a language model writes: printed as it comes, kept, ended where a document ends."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from nala_platform.tasks.language_modeling import LanguageModelingTask

from nala_platform.callbacks.generated_text import GeneratedText
from nala_platform.data.language.tokens import Prompts, train_bpe
from nala_platform.data.order import Draw
from nala_platform.errors import UserError
from nala_platform.models.language import causal_lm
from nala_platform.optim import WarmupCosine

TEXTS = ["plain words, plain text\n"] * 9


@pytest.fixture
def tokenizer():
    return train_bpe(TEXTS, 270)


@pytest.fixture
def task():
    torch.manual_seed(0)
    return LanguageModelingTask(causal_lm(vocab_size=270), torch.optim.AdamW, WarmupCosine, new_tokens=40).eval()


def batch(prompt: str, tokenizer) -> dict:
    sample = Prompts([prompt], tokenizer)[Draw(0, epoch=0)]
    return {"tokens": sample["tokens"][None], "eos": torch.tensor([sample["eos"]]), "name": [prompt]}


def trainer(folder: Path, tokenizer, **more):
    data = SimpleNamespace(tokenizer=tokenizer)
    return SimpleNamespace(default_root_dir=str(folder), is_global_zero=True, datamodule=data, ckpt_path=None, **more)


@pytest.mark.parametrize("prompt", ["plain words", "naïve 日本\n", ""])
def test_what_is_printed_is_what_is_kept(tmp_path: Path, capsys, tokenizer, task, prompt: str):
    """An untrained model writes bytes that are no text, line ends and all."""
    callback, run = GeneratedText(), trainer(tmp_path, tokenizer)
    callback.on_predict_start(run, task)
    torch.manual_seed(1)
    found = task.predict(batch(prompt, tokenizer))
    callback.on_predict_batch_end(run, task, found, None, 0)
    callback.on_predict_end(run, task)
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "predictions.txt").read_bytes().decode() and printed.startswith(prompt)


def test_the_text_ends_with_the_document(tokenizer, task):
    task.temperature = 0.0
    first = batch("plain", tokenizer)
    length = first["tokens"].shape[1]
    whole = task.predict({name: first[name] for name in ("tokens", "name")})["tokens"][0].tolist()
    end = whole[length + 3]
    ended = task.predict(first | {"eos": torch.tensor([end])})["tokens"][0].tolist()
    assert ended == whole[: whole.index(end, length) + 1]


def test_the_tokenizer_is_kept_and_another_is_refused(tmp_path: Path, tokenizer):
    callback = GeneratedText()
    callback.on_fit_start(trainer(tmp_path, tokenizer), None)
    callback.on_fit_start(trainer(tmp_path, tokenizer), None)  # as after a resume
    other = train_bpe(["other text"] * 9, 260)
    with pytest.raises(UserError, match="other tokens now than the run has learned"):
        callback.on_fit_start(trainer(tmp_path, other), None)
    scored = trainer(tmp_path / "test", other)
    callback.on_test_start(scored, None)
    scored.ckpt_path = str(tmp_path / "checkpoints" / "best.ckpt")
    for refuse in (callback.on_test_start, callback.on_validation_start):
        with pytest.raises(UserError, match=r"give --data.tokenizer .*/tokenizer where"):
            refuse(scored, None)
