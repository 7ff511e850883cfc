import pytest

from bistoch.lab.bench.answers import Answers
from bistoch.lab.bench.cases import Case


@pytest.fixture
def answers(tmp_path):
    folder = tmp_path / "answers"
    folder.mkdir()
    return Answers(folder)


@pytest.fixture
def case():
    return Case("n=7", "attention", (1, 2, 7, 5), "random")
