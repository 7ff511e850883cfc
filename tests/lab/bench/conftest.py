import pytest

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
