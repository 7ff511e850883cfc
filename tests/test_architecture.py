"""The house keeps its shape: light imports, short files, no machine paths."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def modules_after(code):
    """The names of all modules that a fresh interpreter has loaded after some code."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print('LOADED', *sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_import_is_light():
    heavy = {"numba", "triton", "transformers", "matplotlib", "scipy", "typer", "rich", "beartype"}
    assert not ({"torch", "numpy"} | heavy) & modules_after("import bistoch")
    everything = "import bistoch; bistoch.nn, bistoch.flows, bistoch.elastic_attention"
    # compilers and algebra systems come with torch, and take as long to load as torch itself
    assert not ({"torch._dynamo", "sympy"} | heavy) & modules_after(everything)


ASK_EVERY_COMMAND = """
import typer.main
from bistoch.cli import app

def ask(command, words):
    app([*words, "--help"], prog_name="bistoch", standalone_mode=False)
    for name, inner in getattr(command, "commands", {}).items():
        ask(inner, [*words, name])

app(["--version"], standalone_mode=False)
ask(typer.main.get_command(app), [])
"""


def test_help_and_version_do_not_load_torch():
    assert not {"torch", "numpy", "matplotlib"} & modules_after(ASK_EVERY_COMMAND)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_stay_readable(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 400
    assert path.name not in {"utils.py", "common.py", "base.py", "helpers.py", "misc.py"}
    assert not re.search(r"^\s*assert ", path.read_text(), re.MULTILINE)


def test_no_kind_of_type_error_is_ignored():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert "disable_error_code" not in settings


def test_warnings_point_at_the_users_line():
    # one function finds that line; warnings.warn alone would point into the package
    warning = [path.name for path in SOURCES if "warnings.warn(" in path.read_text()]
    assert warning == ["warn.py"]


def endless_waits(path):
    """Lines that wait for a process or a thread, however long that takes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner, name = ast.unparse(node.func.value), node.func.attr
        options = {keyword.arg for keyword in node.keywords}
        waits = name in {"wait", "join", "communicate"} and not node.args
        waits |= owner == "subprocess" and name in {"run", "call", "check_call", "check_output"}
        waits |= name == "DataLoader" and "num_workers" in options
        if waits and "timeout" not in options:
            yield f"{path.relative_to(ROOT)}:{node.lineno} {name}"


def test_nobody_waits_for_ever():
    tests = sorted((ROOT / "tests").rglob("*.py"))
    assert not [line for path in [*SOURCES, *tests] for line in endless_waits(path)]
