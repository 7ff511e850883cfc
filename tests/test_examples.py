"""The examples run as they are: scripts in this process, notebooks in a kernel of their own."""

import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "learned_lam": "the loaded model computes the same: True",
    "matching": "precision",
    "plans": "wrote plans.png",
    "routing": "with balance",
    "search": "largest hub",
}
# run by tests/distributed, in several processes
OVER_RANKS = {"prototypes_distributed", "sequence_parallel"}
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def test_every_script_is_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS) | OVER_RANKS
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize("name", SAYS)
def test_script_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# the kernel says on its own streams how it talks to us
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_notebook_runs(path, tmp_path, monkeypatch):
    # a kernel beside the tests of other processes: one thread, no window for the pictures
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs first"
    NotebookClient(notebook, timeout=120, startup_timeout=120, kernel_name="python3").execute()
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    assert pictures
