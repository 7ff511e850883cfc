"""The house keeps its shape: light imports, short files, no machine paths."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_import_is_light():
    heavy = "numba triton transformers matplotlib scipy typer rich beartype"
    code = f"import sys, bistoch; print(*[m for m in {heavy!r}.split() if m in sys.modules])"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.split() == []


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
