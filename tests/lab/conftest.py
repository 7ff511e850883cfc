"""What tests of comparisons share: small reports, and operators with given scores."""

import pytest

from bistoch.lab.compare import attention, cells, summary
from bistoch.lab.train import Setup


@pytest.fixture
def quick_reports(monkeypatch):
    monkeypatch.setattr(attention, "SAMPLES", 5)
    monkeypatch.setattr(cells, "ROUNDS", 1)


@pytest.fixture
def row():
    def row(operator, *accuracies):
        """An operator with these test accuracies, one per seed; None is a run that diverged.

        The epoch before the last was better by a point.
        """
        made = []
        for i, x in enumerate(accuracies):
            curve = [] if x is None else [{"accuracy": x + 0.01}, {"accuracy": x}]
            result = {"test": {"accuracy": x}, "curve": curve}
            made.append(cells.Cell(Setup("", "", operator, seed=i), None, result))
        whole = [cell for cell, x in zip(made, accuracies, strict=True) if x is not None]
        return summary.Row(operator, whole, [cell for cell in made if cell not in whole])

    return row
