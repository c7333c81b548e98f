"""Ready tokens, in tiny trees of the very format."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nala_platform.data.language.token_files import TokenFileData, TokenSource
from nala_platform.data.language.tokens import train_bpe
from nala_platform.data.order import Draw
from nala_platform.data.problems import collecting
from nala_platform.errors import UserError


def bins(root: Path, seed: int = 0, size: int = 50257) -> dict[str, np.ndarray]:
    """nanoGPT's: documents that end with 50256."""
    root.mkdir(parents=True)
    random = np.random.default_rng(seed)
    found = {}
    for part, count in (("train", 3000), ("val", 700)):
        found[part] = random.integers(0, min(size, 50256), count).astype(np.uint16)
        if size == 50257:
            found[part][99::100] = 50256
        found[part].tofile(root / f"{part}.bin")
    return found


def shard(path: Path, token_S: np.ndarray, magic: int = 20240520, version: int = 1, said: int | None = None) -> None:
    head = np.zeros(256, np.int32)
    head[:3] = magic, version, len(token_S) if said is None else said
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.tobytes() + token_S.astype("<u2" if magic == 20240520 else "<u4").tobytes())


def predicted(module: TokenFileData, part: str) -> list[int]:
    blocks = module.items(part)
    samples = [blocks[Draw(index, epoch=0)] for index in range(len(blocks))]
    return [token for sample in samples for token in sample["target"][sample["target"] != -100].tolist()]


@pytest.mark.parametrize("stride", [None, 5])
def test_nanogpt_s_tokens_are_predicted_once_each(tmp_path: Path, stride: int | None):
    found = bins(tmp_path / "b")
    module = TokenFileData(str(tmp_path / "b"), context=16, source=TokenSource(stride=stride))
    for part in ("train", "val"):
        assert predicted(module, part) == found[part][1:].tolist()
    assert predicted(module, "test") == found["val"][1:].tolist()
    protocol = module.protocol()
    assert protocol["tokens"] == {"train": 2999, "val": 699} and protocol["documents"] == {"train": 30, "val": 7}
    assert protocol["bits_per_byte"].startswith("left out") and "bytes" not in protocol
    assert protocol["test split"].startswith("val") and module.vocab_size == 50257
    assert set(module.baselines()["unigram"]) == {"perplexity"}


def test_shards_of_llm_c_are_one_stream_over_their_ends(tmp_path: Path):
    random = np.random.default_rng(0)
    pieces = [np.append(50256, random.integers(0, 50000, count)) for count in (30, 1, 100)]
    for index, piece in enumerate(pieces):
        shard(tmp_path / "d" / f"fineweb_train_{index:06d}.bin", piece)
    shard(tmp_path / "d" / "fineweb_val_000000.bin", pieces[0])
    shard(tmp_path / "d" / "hellaswag_val.bin", pieces[0], magic=20240522)  # multiple choice, no text
    module = TokenFileData(str(tmp_path / "d"), layout="llm_c", context=16)
    assert predicted(module, "train") == np.concatenate(pieces)[1:].tolist()
    assert predicted(module, "val") == pieces[0][1:].tolist()
    assert module.protocol()["documents"] == {"train": 3, "val": 1} and module.protocol()["vocabulary"] == "GPT-2"
    stream = pickle.loads(pickle.dumps(module.items("train"))).stream
    assert stream.token_S[25:140].tolist() == np.concatenate(pieces)[25:140].tolist()


def test_llama_3_s_ids_are_wider(tmp_path: Path):
    token_S = np.array([128000, 5, 127999, 128000, 7])
    for part in ("train", "val"):
        shard(tmp_path / "d" / f"x_{part}.bin", token_S, magic=20240801, version=7)
    module = TokenFileData(str(tmp_path / "d"), layout="llm_c", context=16)
    assert predicted(module, "train") == token_S[1:].tolist() and module.vocab_size == 128256
    assert module.protocol()["documents"]["train"] == 2
    shard(tmp_path / "d" / "y_train.bin", np.array([1, 2]))
    with pytest.raises(UserError, match=r"mixes vocabularies: x_train.bin \(Llama 3\) and y_train.bin \(GPT-2\)"):
        TokenFileData(str(tmp_path / "d"), layout="llm_c")


def test_bytes_of_ids_are_those_of_their_texts(tmp_path: Path):
    documents = ["naïve 日本 🙂 text\n", "words and words", "of trees"] * 9
    tokenizer = train_bpe(documents, 300)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "b").mkdir()
    for part in ("train", "val"):
        ids = [token for text in documents for token in (*tokenizer(text)["input_ids"], tokenizer.eos_token_id)]
        np.array(ids, np.uint16).tofile(tmp_path / "b" / f"{part}.bin")
    (tmp_path / "b" / "meta.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")  # is not loaded
    module = TokenFileData(str(tmp_path / "b"), tokenizer=str(tmp_path / "tokenizer"), context=32)
    first = len(tokenizer.decode(ids[:1]).encode())
    total = len("".join(documents).encode())
    assert module.protocol()["bytes"]["val"] == total - first and module.protocol()["documents"]["val"] == 27
    assert {"perplexity", "bits_per_byte"} == set(module.baselines()["unigram"])
    assert module.vocab_size == len(tokenizer) and module.eos == tokenizer.eos_token_id


def test_a_vocabulary_of_its_own_must_be_told(tmp_path: Path):
    found = bins(tmp_path / "b", size=65)
    (tmp_path / "b" / "meta.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(UserError, match=r"data\.vocab_size: meta\.pkl says"):
        TokenFileData(str(tmp_path / "b"))
    module = TokenFileData(str(tmp_path / "b"), vocab_size=65, context=16)
    assert predicted(module, "train") == found["train"][1:].tolist() and module.eos is None
    assert module.continuations() is None and "documents" not in module.protocol()
    assert "eos" not in module.items("predict")[Draw(0, epoch=0)]
    with pytest.raises(UserError, match=r"train.bin: token \d+ is \d+, but ids are 0..39"):
        predicted(TokenFileData(str(tmp_path / "b"), vocab_size=40, context=16), "train")


def test_files_that_tell_nothing_are_of_the_vocabulary_that_is_named(tmp_path: Path):
    bins(tmp_path / "b", size=250)
    assert TokenFileData(str(tmp_path / "b"), vocab_size=50304).eos == 50256  # padded
    own = TokenFileData(str(tmp_path / "b"), vocab_size=250, source=TokenSource(eos=3))
    assert (own.vocab_size, own.eos) == (250, 3) and own.protocol()["vocabulary"] == "one of its own of 250 ids"
    train_bpe(["text"], 257).save_pretrained(tmp_path / "tokenizer")
    named = TokenFileData(str(tmp_path / "b"), tokenizer=str(tmp_path / "tokenizer"))
    assert (named.vocab_size, named.eos) == (257, 0) and named.protocol()["vocabulary"] == "the tokenizer's"
    for part in ("train", "val"):
        shard(tmp_path / "d" / f"x_{part}.bin", np.arange(9))
    with pytest.raises(UserError, match=r"data.tokenizer has 257 tokens, but the ids are of GPT-2 with 50257"):
        TokenFileData(str(tmp_path / "d"), layout="llm_c", tokenizer=str(tmp_path / "tokenizer"))


def test_a_resume_with_other_tokens_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bins(tmp_path / "b")
    state = TokenFileData(str(tmp_path / "b")).state_dict()
    np.arange(3000, dtype=np.uint16).tofile(tmp_path / "b" / "train.bin")
    module = TokenFileData(str(tmp_path / "b"))
    module.trainer = SimpleNamespace(state=SimpleNamespace(fn="fit"), is_global_zero=True)
    module.load_state_dict(module.state_dict())
    assert capsys.readouterr().err == ""
    module.load_state_dict(state)
    assert "has changed since the checkpoint was written" in capsys.readouterr().err


def test_damaged_token_files_are_named_all_at_once(tmp_path: Path):
    root = tmp_path / "d"
    shard(root / "a_train_0.bin", np.arange(9))
    shard(root / "a_train_1.bin", np.arange(9), said=12)
    shard(root / "a_train_2.bin", np.arange(9), magic=1)
    shard(root / "a_train_3.bin", np.arange(0))
    (root / "a_train_4.bin").write_bytes(b"short")
    shard(root / "a_val_0.bin", np.arange(9))
    with collecting() as found:
        module = TokenFileData(str(root), layout="llm_c")
    assert {problem.path.name: problem.kind for problem in found} == {
        "a_train_1.bin": "wrong size",
        "a_train_2.bin": "unreadable",
        "a_train_3.bin": "empty",
        "a_train_4.bin": "empty",
    }
    assert predicted(module, "train") == [*range(1, 9)]
    with pytest.raises(UserError, match="holds 9 tokens, but its header says 12: it was cut off"):
        TokenFileData(str(root), layout="llm_c")
    (tmp_path / "list").write_text("".join(f"a_train_{index}.bin\n" for index in range(1, 5)))
    assert len(TokenFileData(str(root), layout="llm_c", exclude=str(tmp_path / "list")).items("train")) == 1


def test_the_wrong_layout_of_tokens_is_told(tmp_path: Path):
    for part in ("train", "val"):
        shard(tmp_path / "d" / f"{part}.bin", np.arange(2000))
    with pytest.raises(UserError, match=r"begins with llm.c's header: give --data.layout llm_c"):
        TokenFileData(str(tmp_path / "d"))
    bins(tmp_path / "b")
    with pytest.raises(UserError, match=r"none of llm.c's headers; without one: layout nanogpt"):
        TokenFileData(str(tmp_path / "b"), layout="llm_c")
    (tmp_path / "b" / "val.bin").write_bytes(b"odd")
    with pytest.raises(UserError, match="3 bytes are no whole number of <u2 tokens"):
        TokenFileData(str(tmp_path / "b"))
    with pytest.raises(UserError, match=r"has no tokens for train and val: wanted train.bin and val.bin"):
        TokenFileData(str(tmp_path))
