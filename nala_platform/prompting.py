"""``nala generate``, and ``nala predict`` of a language run: rewritten so that prompts come in the run's own tokens.

Light: imports no torch.
"""

from pathlib import Path

from nala_platform import runs
from nala_platform.arguments import Arguments, positive
from nala_platform.errors import UserError

DATA = "nala_platform.data.language.prompts.PromptData"
# One process writes one text after another, and nothing else writes to the terminal.
_ALONE = {"devices": "1", "num_nodes": "1", "strategy": "auto", "enable_progress_bar": "false"}
# What the run had beside the text, such as loggers that go to a network, is not for a person who wants text.
_TEXT_ALONE = (
    "--trainer.logger=false",
    '--trainer.callbacks=[{"class_path": "nala_platform.callbacks.generated_text.GeneratedText"}]',
)


def rewritten(words: list[str]) -> list[str]:
    """What `nala_platform.argv.expand` shall read; other commands stay as they are.

    ``generate RUN --prompt P --seed 1`` becomes ``predict RUN --data.prompt P --seed_everything 1``. In
    ``predict`` of a run that has kept a tokenizer, `DATA` takes the place of the data that the run was trained on,
    unless ``--data`` is typed; ``--prompt`` is short for ``--data.prompt``. A checkpoint of a run that is named by
    ``--ckpt_path`` is as good as the run.

    Raises:
        UserError: an unknown flag, no run, no prompt, or a run that has no tokenizer.
    """
    if words[0] == "generate":
        return _predict(_generate(words[1:]), prompted=True)
    if words[0] == "predict":
        return _predict(words[1:], prompted=_value(words, "--prompt") is not None)
    return words


def _generate(words: list[str]) -> list[str]:
    parser = Arguments("nala generate", "Let a run's language model go on with a text.")
    parser.add_argument("run", metavar="RUN", help="a run folder of the task lm, or a .ckpt file in one")
    parser.add_argument("--prompt", help="the text to go on with; '' begins a document")
    parser.add_argument("--prompts", metavar="FILE", help="a file with a prompt in each line")
    parser.add_argument("--new_tokens", type=positive, help="the text ends after so many, or at the end of a document")
    parser.add_argument("--temperature", help="0 takes the most likely token each time")
    parser.add_argument("--top_k", type=positive, help="choose among so many of the most likely tokens")
    parser.add_argument("--seed", help="the same seed writes the same text; left out: the run's")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="left out: a GPU if there is one")
    options = parser.read(words)
    if (options.prompt is None) == (options.prompts is None):
        parser.error("give --prompt TEXT, or --prompts FILE with one in each line")
    flags = {
        "data.prompt": options.prompt,
        "data.predict_path": options.prompts,
        "model.new_tokens": options.new_tokens,
        "model.temperature": options.temperature,
        "model.top_k": options.top_k,
        "seed_everything": options.seed,
        "trainer.accelerator": options.device,
    }
    return [options.run, *_TEXT_ALONE, *(f"--{flag}={value}" for flag, value in flags.items() if value is not None)]


def _predict(words: list[str], *, prompted: bool) -> list[str]:
    checkpoint = Path(_value(words, "--ckpt_path") or "").expanduser()
    if prompted and (not words or words[0].startswith("-")) and checkpoint.parent.name == runs.CHECKPOINTS:
        words = [str(checkpoint), *_without(words, "--ckpt_path")]
    if not words or words[0].startswith("-"):
        if prompted:
            raise UserError("a prompt needs a run to go on with it: nala generate runs/lm/<time> --prompt TEXT")
        return ["predict", *words]
    run, *typed = words
    tokenizer = runs.find_run(run).folder / runs.TOKENIZER
    if prompted and not tokenizer.is_dir():
        raise UserError(f"{tokenizer.parent} has no folder {runs.TOKENIZER}: it is no run of a language model")
    if not tokenizer.is_dir() or _value(typed, "--data") is not None:
        return ["predict", *words]
    typed = [
        f"--data.prompt{word.removeprefix('--prompt')}" if word.partition("=")[0] == "--prompt" else word
        for word in typed
    ]
    alone = [f"--trainer.{key}={value}" for key, value in _ALONE.items()]
    return ["predict", run, "--data", DATA, f"--data.tokenizer={tokenizer.absolute()}", *alone, *typed]


def _value(words: list[str], flag: str) -> str | None:
    place = _place(words, flag)
    if place is None:
        return None
    _, equals, value = words[place].partition("=")
    return value if equals else " ".join(words[place + 1 : place + 2])


def _without(words: list[str], flag: str) -> list[str]:
    place = _place(words, flag)
    if place is None:
        return words
    return words[:place] + words[place + (1 if "=" in words[place] else 2) :]


def _place(words: list[str], flag: str) -> int | None:
    return next((place for place, word in enumerate(words) if word.partition("=")[0] == flag), None)
