import pytest

from bistoch.lab.bench import run
from bistoch.lab.bench.cases import Case
from bistoch.lab.bench.expected import ExpectedResults


@pytest.fixture
def expected(tmp_path):
    folder = tmp_path / "expected"
    folder.mkdir()
    return ExpectedResults(folder)


@pytest.fixture
def case():
    return Case("n=7", "attention", (1, 2, 7, 5), "random")


@pytest.fixture
def measured(monkeypatch):
    """The keys of what is measured, on a quiet machine, without the work and the picture."""
    done = []
    monkeypatch.setattr(run, "load_average", lambda: 0.0)
    monkeypatch.setattr(run, "_draw", lambda *_: None)

    def pretend(group, todo, *_):
        cells = [run._blank(group, entry) for entry in todo]
        for cell in cells:
            cell.seconds = cell.ratio = cell.memory = cell.others = 1.0
            done.append(cell.key)
        return cells

    monkeypatch.setattr(run, "_measure_here", pretend)
    return done
