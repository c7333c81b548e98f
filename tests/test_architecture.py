"""The arrows of the house: who may import whom, read from the source."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import nala_platform

ROOT = Path(__file__).parent.parent
ROOMS = {
    "attention": "nala_platform/attention",
    "nn": "nala_platform/nn",
    "models": "nala_platform/models",
    "data": "nala_platform/data",  # what the rooms within share
    "data.images": "nala_platform/data/images",
    "data.language": "nala_platform/data/language",
    "callbacks": "nala_platform/callbacks",
    "bench": "nala_platform/bench",
    "check": "nala_platform/check",
    "runs": "nala_platform/runs",
    "tasks": "tasks",
    "conf": "conf",
    "sweeps": "sweeps",
}
LIGHT = {"errors", "runs", "argv", "paths", "yaml_files"}  # import nothing heavy and may be imported by all
ARROWS = {
    "attention": {"errors"},
    "nn": {"attention", "errors"},
    "models": {"paths", "nn", "attention", "errors"},
    "data": {"paths", "errors"},
    "data.images": {"paths", "data", "similarity", "errors"},
    "data.language": {"paths", "data", "errors"},
    "callbacks": {"paths", "metrics", "similarity", "errors", "runs"},
    "bench": {
        "paths",
        "attention",
        "nn",
        "models",
        "argv",
        "arguments",
        "errors",
        "experiment",
        "notices",
        "optim",
        "runs",
    },
    "check": {
        "paths",
        *("data", "data.images", "data.language"),
        *("argv", "arguments", "errors", "experiment", "failures", "notices", "runs"),
    },
    "tasks": {"metrics", "similarity", "optim", "errors", "runs", "trained"},
    "conf": set(),
    "sweeps": {"errors", "runs", "argv", "arguments", "parent", "paths", "yaml_files"},
    "metrics": {"errors"},
    "similarity": {"errors"},
    "optim": {"errors"},
    "errors": set(),
    "paths": set(),
    "streams": set(),
    "yaml_files": {"errors"},
    "runs": {"errors", "paths"},
    "argv": {"errors", "runs", "paths", "yaml_files"},
    "parse_errors": {"argv", "errors", "runs", "yaml_files", "optim"},
    "parser": {"errors", "paths", "runs", "yaml_files"},
    "notices": set(),
    "failures": {"errors", "setting_errors"},
    "setting_checks": {"errors"},
    "setting_errors": {"errors"},
    "group": {"errors", "parent"},
    "parent": set(),
    "resumption": {"paths", "runs", "errors", "callbacks", "yaml_files"},
    "experiment": {
        "paths",
        "data.images",
        "argv",
        "runs",
        "errors",
        "failures",
        "group",
        "notices",
        "parse_errors",
        "parser",
        "resumption",
        "setting_checks",
        "setting_errors",
        "callbacks",
    },
    "arguments": {"paths", "errors"},
    "prompting": {"paths", "arguments", "errors", "runs"},
    "trained": {"errors", "models", "paths", "runs", "yaml_files"},
    "evaluate": {"paths", "arguments", "errors", "runs", "trained"},
    "export": {"paths", "arguments", "errors", "runs", "trained"},
    "verify": {"paths", "arguments", "errors", "runs"},
    "cli": {"paths", "argv", "errors", "experiment", "notices", "prompting", "streams"},
    "__main__": {"cli"},
    "dry_run": {"cli", "streams"},
}


def sources() -> list[tuple[str, Path]]:
    found = [
        (room, path)
        for room, folder in ROOMS.items()
        for path in sorted((ROOT / folder).rglob("*.py"))
        if room == max((name for name, place in ROOMS.items() if path.is_relative_to(ROOT / place)), key=len)
    ]
    return found + [
        (path.stem, path) for path in sorted((ROOT / "nala_platform").glob("*.py")) if path.stem != "__init__"
    ]


def imported(path: Path, room: str) -> set[str]:
    """Dotted modules that a file imports; relative ones as if from their room."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                names.add(f"nala_platform.{room}")
            elif node.module == "nala_platform":
                names |= {f"nala_platform.{alias.name}" for alias in node.names}
            else:
                names.add(node.module or "")
    return names


def room_of(module: str) -> str:
    """The innermost room that a module of ours stands in.

    >>> room_of("nala_platform.data.images.layouts.voc"), room_of("nala_platform.data.order")
    ('data.images', 'data')
    """
    _, first, *rest = module.split(".")
    inner = ".".join((first, *rest[:1]))
    return inner if inner in ROOMS else first


@pytest.mark.parametrize(("room", "path"), sources(), ids=lambda value: str(getattr(value, "name", value)))
def test_arrows(room: str, path: Path):
    assert room in ARROWS, f"{path} is in no room: give it a row in ARROWS"
    ours = {room_of(name) for name in imported(path, room) if name.startswith("nala_platform.")}
    assert ours - {room} <= ARROWS[room], f"{path} imports {sorted(ours - {room} - ARROWS[room])}"


def text_calls(path: Path) -> Iterator[ast.Call]:
    """Calls that read or write text: of files, and of what another process prints."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = [word.arg for word in node.keywords]
        modes = [arg.value for arg in node.args[:2] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        owner = getattr(getattr(node.func, "value", None), "id", "")
        is_file = owner not in ("Image", "tarfile", "writer") and (owner, name) != ("os", "open")
        is_open = name in ("open", "fdopen") and is_file
        if name in ("read_text", "write_text") and isinstance(node.func, ast.Attribute) and owner != "yaml_files":
            yield node
        elif is_open and not any("b" in mode for mode in modes):
            yield node
        elif {"text", "universal_newlines"} & set(given) and name in ("run", "Popen", "check_output"):
            yield node


@pytest.mark.parametrize("path", [path for _, path in sources()], ids=lambda path: path.name)
def test_text_has_an_encoding_whatever_the_locale(path: Path):
    found = [node.lineno for node in text_calls(path) if "encoding" not in [word.arg for word in node.keywords]]
    assert found == [], f"{path}: without an encoding in lines {found}"


@pytest.mark.parametrize("path", [path for room, path in sources() if room == "attention"], ids=lambda path: path.name)
def test_attention_imports_torch_alone(path: Path):
    outside = {name.split(".")[0] for name in imported(path, "attention")} - set(sys.stdlib_module_names)
    kernels = {"triton"} if path.parent.name == "triton" else set()  # imported when called: test_triton.py
    assert outside <= {"torch", "nala_platform"} | kernels


def test_the_mechanisms_stand_in_one_table():
    from nala_platform.attention import ATTENTION

    assert list(ATTENTION) == ["nala", "softmax", "linear", "relu"]


@pytest.mark.parametrize("path", [path for _, path in sources()], ids=lambda path: path.name)
def test_sizes(path: Path):
    """Functions under 40 lines, files under 400, constructors under 12 arguments."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 400
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        code = (node.end_lineno or 0) - node.body[0].lineno + 1
        if ast.get_docstring(node) is not None and len(node.body) > 1:
            code = (node.end_lineno or 0) - node.body[1].lineno + 1
        assert code < 40, f"{path.name}:{node.name} has {code} lines"
        if node.name == "__init__":
            count = len(node.args.args) - 1 + len(node.args.kwonlyargs)
            assert count < 12, f"{path.name}: a constructor with {count} arguments"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


SHARED = """
import os, sys, torch
for code in sys.argv[1:]:
    if (child := os.fork()) == 0:
        exec(code, {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, code
"""


def run_each(codes: list[str]) -> list[str]:
    """The last line that each prints in a process of its own, which begins with torch loaded and nothing else."""
    marked = [f"{code}; print('--')" for code in codes]
    done = subprocess.run([sys.executable, "-c", SHARED, *marked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [text.splitlines()[-1] for text in done.stdout.split("--\n")[:-1]]


def test_the_light_modules_load_no_torch():
    names = "nala_platform, nala_platform.cli, nala_platform.runs, nala_platform.argv"
    code = f"import sys, {names}; print('torch' in sys.modules)"
    assert run(code) == "False\n"


def test_timm_knows_the_models_whichever_is_imported_first():
    firsts = ["nala_platform", "timm", "nala_platform, importlib.util; importlib.util.find_spec('timm')"]
    code = "import timm, nala_platform; print(timm.list_models('nalaformer*'))"
    names = ["nalaformer_b", "nalaformer_l", "nalaformer_nano", "nalaformer_s", "nalaformer_t", "nalaformer_xt"]
    assert run_each([f"import {first}; {code}" for first in firsts]) == [str(names)] * 3


ORDERS = [
    "import nala_platform; from transformers import AutoConfig, AutoModelForCausalLM",
    "from transformers import AutoConfig, AutoModelForCausalLM; import nala_platform",
    "import nala_platform; from transformers import GenerationMixin, AutoModelForCausalLM, AutoConfig",
    "import nala_platform.models.language; from transformers import AutoConfig, AutoModelForCausalLM",
]
ALL = "import nala_platform; import transformers.modeling_utils; from transformers import *"  # half a minute


@pytest.mark.parametrize("orders", [ORDERS, pytest.param([ALL], marks=pytest.mark.slow)], ids=["names", "all"])
def test_hugging_face_knows_the_model_in_every_order_of_imports(orders: list[str]):
    code = (
        "config = AutoConfig.for_model('nala', hidden_size=16, num_attention_heads=2, num_hidden_layers=1,"
        " intermediate_size=16, vocab_size=7); print(type(AutoModelForCausalLM.from_config(config)).__name__)"
    )
    assert run_each([f"{order}; {code}" for order in orders]) == ["NaLaForCausalLM"] * len(orders)


def test_the_public_names_are_there():
    assert all(getattr(nala_platform, name) is not None for name in nala_platform.__all__)
    assert set(nala_platform.__all__) <= set(dir(nala_platform)) and len(dir(nala_platform)) > 8


def test_every_package_is_installed():
    """An editable install finds folders that setuptools was not told of; a real one does not."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    places = {name: table["package-dir"].get(name, name.replace(".", "/")) for name in table["packages"]}
    found = {
        path.parent.relative_to(ROOT).as_posix() for top in ROOMS.values() for path in (ROOT / top).rglob("__init__.py")
    }
    assert found | {"nala_platform"} == set(places.values())
