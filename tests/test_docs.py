"""The documentation: its links lead somewhere, and the command line takes every command that it shows."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nala_platform.argv import CONF

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each ``nala`` command in the page's bash blocks, without comments."""
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.splitlines():
            for part in line.split("&&"):
                words = shlex.split(part, comments=True)
                starts = [place for place, word in enumerate(words) if word in ("nala", ".venv/bin/nala")]
                if starts:
                    yield words[starts[0] + 1 :]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_site_lists_every_page():
    nav = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    missing = [str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")]
    assert [path for path in missing if path not in nav] == []


def test_every_recipe_is_documented():
    """Each file of ``conf/`` that is no base file is named after ``--config`` in some page."""
    shown = {word for page in PAGES for words in commands(page) for word in words}
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    recipes = {path.stem for path in CONF.glob("*.yaml")} - {"base", "cls", "seg", "sr", "lm", "smoke"}
    assert {name for name in recipes if name not in shown and f"`{name}`" not in text and name not in text} == set()


FITS = sorted(
    {
        shlex.join(words)
        for page in PAGES
        for words in commands(page)
        if words[0] == "fit" and not {"RUN", "--print_config"} & set(words)
    }
)


@pytest.mark.parametrize("command", FITS)
def test_nala_fit_takes_what_the_documentation_shows(zygote, tmp_path: Path, command: str):
    """Parsed with the real parser, which refuses an unknown key, a value of a wrong type and an unknown config file."""
    printed = zygote.call(tmp_path, *shlex.split(command), "--print_config").stdout
    assert yaml.safe_load(printed)["task"] == command.split("--task ")[1].split()[0]
