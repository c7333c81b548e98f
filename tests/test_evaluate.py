"""A run's language model on a task of lm-evaluation-harness, and as a Hugging Face folder; all offline."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from nala_platform import evaluate, export
from nala_platform.data.language.tokens import train_bpe
from nala_platform.errors import UserError
from nala_platform.models.language import causal_lm
from nala_platform.trained import load_network, load_tokenizer

WORDS = "the cat sat on a mat and then a dog ran far from the red house".split()


def sentence(generator: np.random.Generator, words: int) -> str:
    return " ".join(generator.choice(WORDS, words))


@pytest.fixture(scope="module")
def harness():
    """lm-eval, which reads its ten thousand task files once here, not in each test."""
    if evaluate.missing():
        pytest.skip(f"lm-eval is not installed: {evaluate.MEND}")
    from lm_eval import tasks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "TaskManager", functools.cache(tasks.TaskManager))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder as `nala fit --task lm` leaves it, of a model whose first weights are far from uniform."""
    folder = tmp_path_factory.mktemp("run")
    tokenizer = train_bpe([" ".join(WORDS)] * 5, 300)
    tokenizer.save_pretrained(folder / "tokenizer")
    torch.manual_seed(0)
    options = {"size": "nano", "vocab_size": len(tokenizer)}
    network = causal_lm(**options)
    with torch.no_grad():
        network.embed.weight *= 8.0
    (folder / "checkpoints").mkdir()
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    save_file(weights, folder / "checkpoints" / "model.safetensors")
    torch.save(
        {"state_dict": {f"network.{name}": value * 0.5 for name, value in weights.items()}},
        folder / "checkpoints" / "best.ckpt",
    )
    described = {"class_path": "nala_platform.models.language.causal_lm", "init_args": options}
    config = {"model": {"init_args": {"network": described}}, "data": {"init_args": {"context": 64}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.fixture(scope="module")
def items() -> list[dict]:
    generator = np.random.default_rng(0)
    return [
        {
            "question": sentence(generator, int(generator.integers(3, 9))),
            "choices": [sentence(generator, words) for words in generator.permutation([1, 2, 4, 7])],
            "answer": int(generator.integers(4)),
        }
        for _ in range(13)
    ]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory, items: list[dict]) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "pick.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    settings = {
        "task": "pick_the_end",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "pick.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    (folder / "pick.yaml").write_text(yaml.safe_dump(settings))
    return folder / "pick.yaml"


@torch.no_grad()
def continued(run: Path, prompt: str, tokens: int) -> str:
    """The most likely text, a full forward a token."""
    network, tokenizer = load_network(str(run)).network, load_tokenizer(run)
    seen = tokenizer(prompt)["input_ids"]
    for _ in range(tokens):
        seen = [*seen, int(network(torch.tensor([seen])).logits[0, -1].argmax())]
    return tokenizer.decode(seen[-tokens:], skip_special_tokens=True)


@torch.no_grad()
def by_hand(run: Path, item: dict) -> list[float]:
    """log p of each choice after the question and a space, one unpadded forward each."""
    network, tokenizer = load_network(str(run)).network, load_tokenizer(run)
    found = []
    for choice in item["choices"]:
        question, whole = (tokenizer(text)["input_ids"] for text in (item["question"], f"{item['question']} {choice}"))
        logs = network(torch.tensor([whole])).logits[0].log_softmax(-1)
        found.append(sum(float(logs[at - 1, whole[at]]) for at in range(len(question), len(whole))))
    return found


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize("batch_size", ["1", "5"])
def test_scores_are_those_of_full_forwards_one_by_one(
    run: Path, task: Path, items: list[dict], batch_size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """With batches of five, rows of other lengths are padded."""
    evaluate.main([str(run), "--tasks", str(task), "--batch_size", batch_size, "--output", str(tmp_path / "r.json")])
    result = json.loads((tmp_path / "r.json").read_text())
    sums = np.array([by_hand(run, item) for item in items])
    lengths = np.array([[len(choice) for choice in item["choices"]] for item in items])
    answer = np.array([item["answer"] for item in items])
    for metric, scores in {"acc": sums, "acc_norm": sums / lengths}.items():
        share = (scores.argmax(1) == answer).mean()
        [row] = [row for row in result["results"] if row["metric"] == metric]
        assert row["task"] == "pick_the_end" and row["value"] == pytest.approx(share)
        assert row["stderr"] == pytest.approx((share * (1 - share) / 12) ** 0.5)
        assert f"{share:.4f}" in capsys.readouterr().out or metric == "acc_norm"
    assert len({*sums.argmax(1).tolist()}) > 1, "a model that always takes one place would be right by any padding"
    assert result["max_length"] == 64 and result["weights"] == "checkpoints/model.safetensors"
    assert result["items"]["pick_the_end"]["effective"] == 13


@pytest.mark.usefixtures("harness")
def test_text_that_is_written_in_padded_batches_is_what_each_prompt_is_continued_with(
    run: Path, items: list[dict], tmp_path: Path
):
    prompts = [item["question"] for item in items]
    wanted = [continued(run, prompt, 5) if place % 3 else "no" for place, prompt in enumerate(prompts)]
    lines = [json.dumps({"prompt": prompt, "text": text}) for prompt, text in zip(prompts, wanted, strict=True)]
    (tmp_path / "write.jsonl").write_text("\n".join(lines))
    settings = {
        "task": "write_on",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "write.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "text",
        "generation_kwargs": {"until": ["<never>"], "max_gen_toks": 5, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    (tmp_path / "write.yaml").write_text(yaml.safe_dump(settings))
    words = ["--tasks", str(tmp_path / "write.yaml"), "--batch_size", "4", "--output", str(tmp_path / "r.json")]
    evaluate.main([str(run), *words])
    [row] = json.loads((tmp_path / "r.json").read_text())["results"]
    assert row["value"] == pytest.approx(8 / 13)


@pytest.mark.usefixtures("harness")
def test_the_published_tasks_have_the_names_that_we_tell():
    from lm_eval import tasks

    names = {"piqa", "arc_easy", "arc_challenge", "hellaswag", "winogrande", "boolq", "openbookqa"}
    assert names <= set(tasks.TaskManager(include_path=None).all_tasks)


@pytest.mark.usefixtures("harness")
def test_a_name_of_one_s_own_folder_a_limit_and_the_place_of_the_result(run: Path, task: Path):
    words = ["--tasks", "pick_the_end", "--include_path", str(task.parent), "--limit", "3", "--max_length", "40"]
    evaluate.main([str(run), *words])
    [path] = run.glob("evaluate/*/results.json")
    result = json.loads(path.read_text())
    assert result["items"]["pick_the_end"]["effective"] == result["limit"] == 3 and result["max_length"] == 40
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "piqqa"], "no task 'piqqa'; did you mean 'piqa'?"),
        (["--tasks", "nothing.yaml"], "no task file nothing.yaml"),
        (["--tasks", "broken.yaml"], "broken.yaml cannot be loaded: .*line 2"),
        (["--taks", "piqa"], "no option --taks; did you mean '--tasks'?"),
        (["--tasks", "piqa", "--limit", "0"], "'0' is no whole number from 1 up"),
        ([], "required: --tasks"),
    ],
)
def test_a_mistake_is_one_line(run: Path, tmp_path: Path, monkeypatch, words: list[str], message: str):
    (tmp_path / "broken.yaml").write_text("task: [1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        evaluate.main([str(run), *words])
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("harness")
def test_data_that_cannot_be_fetched_is_said(run: Path, monkeypatch: pytest.MonkeyPatch):
    import datasets

    def no_network(*_, **__):
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", no_network)
    with pytest.raises(UserError, match="task piqa: Couldn't reach the Hub: a task's data is fetched once"):
        evaluate.main([str(run), "--tasks", "piqa"])


def test_without_the_harness_the_mend_is_said(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluate.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'nala-platform\[lm-eval\]'"):
        evaluate.main([str(run), "--tasks", "piqa"])


@pytest.fixture
def pictures_run(tmp_path: Path) -> Path:
    """What a run of another task leaves."""
    described = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 3}}
    (tmp_path / "checkpoints").mkdir()
    save_file({"weight": torch.ones(3, 2), "bias": torch.zeros(3)}, tmp_path / "checkpoints" / "model.safetensors")
    (tmp_path / "checkpoints" / "best.ckpt").touch()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": {"init_args": {"network": described}}}))
    return tmp_path


def test_a_run_on_pictures_is_refused(pictures_run: Path):
    with pytest.raises(UserError, match="no run of a language model"):
        evaluate.main([str(pictures_run), "--tasks", "piqa"])
    with pytest.raises(UserError, match=r"trained a Linear, no Hugging Face model; its weights lie in .*safetensors"):
        export.export(str(pictures_run), pictures_run / "out")
    assert not (pictures_run / "out").exists()


def test_weights_that_do_not_fit_are_named(pictures_run: Path):
    weights = pictures_run / "checkpoints" / "model.safetensors"
    save_file({"weight": torch.ones(2, 2)}, weights)
    with pytest.raises(UserError, match=r"does not fit .*config.yaml: .*bias"):
        load_network(str(pictures_run))
    weights.write_bytes(b"short")
    with pytest.raises(UserError, match=r"safetensors cannot be read"):
        load_network(str(pictures_run))
    config = pictures_run / "config.yaml"
    config.write_text(config.read_text().replace("torch.nn.Linear", "mine.Net"))
    with pytest.raises(UserError, match=r"model.network: .*No module named 'mine'"):
        load_network(str(pictures_run))


@pytest.mark.parametrize(("part", "factor"), [("", 1.0), ("checkpoints/best.ckpt", 0.5)])
def test_an_exported_model_is_read_by_hugging_face_alike(run: Path, tmp_path: Path, part: str, factor: float):
    folder = tmp_path / "deep" / "model"
    export.main([str(run / part), str(folder)])
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id
    assert tokenizer("the cat")["input_ids"] == load_tokenizer(run)("the cat")["input_ids"]
    whole = load_network(str(run)).network.state_dict()
    assert all(torch.equal(value, whole[name] * factor) for name, value in model.state_dict().items())
    with pytest.raises(UserError, match="exists"):
        export.export(str(run), folder)


FOREIGN = """
import json, sys
from lm_eval import simple_evaluate
from transformers import AutoTokenizer
folder, task = sys.argv[1:]
assert "nala_platform" not in sys.modules
model = {"pretrained": folder, "trust_remote_code": True}
found = simple_evaluate("hf", model_args=model, tasks=[task], device="cpu", batch_size=5, bootstrap_iters=0)
ids = AutoTokenizer.from_pretrained(folder)("the cat")["input_ids"]
print(json.dumps({"acc": found["results"]["pick_the_end"]["acc,none"], "ids": ids}))
"""


@pytest.mark.usefixtures("harness")
def test_an_exported_model_is_scored_by_the_harness_alone(run: Path, task: Path, items: list[dict], tmp_path: Path):
    """`lm_eval --model hf`, in a process that has not imported this package."""
    export.export(str(run), tmp_path / "model")
    words = [sys.executable, "-c", FOREIGN, str(tmp_path / "model"), str(task)]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    picked = np.array([by_hand(run, item) for item in items]).argmax(1)
    assert found["acc"] == pytest.approx((picked == [item["answer"] for item in items]).mean())
    assert found["ids"] == load_tokenizer(run)("the cat")["input_ids"]


@pytest.mark.usefixtures("harness")
def test_the_command(zygote, run: Path, task: Path, tmp_path: Path):
    done = zygote.call(tmp_path, "evaluate", str(run), "--tasks", str(task), "--output", "r.json")
    assert "acc_norm" in done.stdout
    assert json.loads((tmp_path / "r.json").read_text())["command"].startswith("nala evaluate")
    wrong = zygote.call(tmp_path, "export", str(run), str(tmp_path), code=2).stderr
    assert wrong.count("\n") == 1 and "exists" in wrong
    nala = Path(sys.executable).with_name("nala")
    assert "nala evaluate RUN" in subprocess.run([nala, "--help"], capture_output=True, text=True).stdout
    python = [sys.executable, "-X", "importtime", nala]  # which lists the modules that were imported, on stderr
    done = subprocess.run([*python, "evaluate", "--help"], capture_output=True, text=True)
    assert "--include_path" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "nala_platform.arguments" in imported and not {"torch", "transformers", "lm_eval"} & imported
