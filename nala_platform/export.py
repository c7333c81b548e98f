"""``nala export``: a run's language model as a Hugging Face folder."""

import tempfile
from pathlib import Path

from nala_platform.arguments import Arguments, path
from nala_platform.errors import UserError
from nala_platform.paths import shown
from nala_platform.runs import CHECKPOINTS, WEIGHTS


def main(words: list[str]) -> None:
    """Do what ``words`` say and print where the model is; see `export`."""
    parser = Arguments("nala export", "Write a run's language model as a Hugging Face folder.")
    parser.add_argument("run", metavar="RUN", help="a run folder of the task lm, or a .ckpt file in one")
    parser.add_argument("folder", type=path, metavar="FOLDER", help="to be made: weights, configuration and tokenizer")
    parser.add_argument("--to", choices=("hf",), default="hf", help="the form")
    options = parser.read(words)
    export(options.run, options.folder)
    print(f"model: {shown(options.folder)} (AutoModelForCausalLM.from_pretrained, trust_remote_code=True)")


def export(where: str, folder: Path) -> None:
    """Write ``folder`` so that `AutoModelForCausalLM` and `AutoTokenizer` read it where nala_platform is installed.

    A process that has not imported it passes ``trust_remote_code=True``. The folder appears as a whole or not at all.

    Raises:
        UserError: no run there, it is no Hugging Face model, or the folder exists.
    """
    if folder.exists():
        raise UserError(f"{shown(folder)} exists: give the path of a folder to be made")
    from transformers import PreTrainedModel  # heavy, as what follows

    from nala_platform.trained import load_network, load_tokenizer

    trained = load_network(where)
    network = trained.network
    if not isinstance(network, PreTrainedModel):
        raise UserError(
            f"{trained.folder} trained a {type(network).__name__}, no Hugging Face model; "
            f"its weights lie in {trained.folder / CHECKPOINTS / WEIGHTS}, under the names of timm where it knows them"
        )
    tokenizer = load_tokenizer(trained.folder)
    for config in (network.config, network.generation_config):
        if config is not None:
            config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as unfinished:
        inside = Path(unfinished) / folder.name
        network.save_pretrained(inside)
        tokenizer.save_pretrained(inside)
        inside.rename(folder)
