"""Every contender computes what it is timed for; libraries that are installed are proven too."""

import pytest

import bistoch
from bistoch.lab.bench.cases import Case, Setting
from bistoch.lab.bench.contenders import (
    attention_contenders,
    balance_contenders,
    causal_contenders,
    operator_contenders,
)
from bistoch.lab.bench.measure import Entry, TimeLimits, measure
from bistoch.lab.bench.peers import peer_contenders

SDPA = Entry(attention_contenders()["sdpa"], Setting())
LIMITS = TimeLimits(rounds=1, sample=0.0)


def check(case, direction, entries, expected):
    cells = measure(case, direction, entries, LIMITS, expected, lambda call, count: 1.0)
    said = {cell.contender: cell.reason for cell in cells if cell.status != "measured"}
    return cells, said


@pytest.mark.parametrize("direction", ["forward", "forward+backward"])
@pytest.mark.parametrize("scores", ["random", "peaked"])
@pytest.mark.parametrize("setting", [Setting(), Setting(0.5, 5), Setting(1.0, 0)], ids=str)
def test_torch_contenders_are_right(direction, scores, setting, expected):
    case = Case("n=11", "attention", (2, 3, 11, 6), scores)
    entries = [SDPA, *(Entry(c, setting) for c in list(attention_contenders().values())[1:])]
    cells, said = check(case, direction, entries, expected)
    assert said == {}
    # the kernels for GPUs are timed on GPUs
    ours = {f"elastic {b}" for b in bistoch.OPERATORS["elastic"].backends if b != "triton"}
    assert ours <= {cell.contender for cell in cells}
    assert all(cell.memory_allocated > 0 for cell in cells)


def test_every_device_has_its_kernels():
    for rows in (attention_contenders, balance_contenders, causal_contenders):
        here, there = (" ".join(rows(device)) for device in ("cpu", "cuda"))
        assert (" cpu" in here, " triton" in here) == (True, False)
        assert (" cpu" in there, " triton" in there) == (False, True)


@pytest.mark.parametrize("direction", ["forward", "forward+backward"])
def test_balance_of_small_matrices_is_right(direction, expected):
    case = Case("50 4x4", "balance", (50, 4, 4), "random")
    entries = [Entry(row, Setting(1.0, 20)) for row in balance_contenders().values()]
    cells, said = check(case, direction, entries, expected)
    assert said == {}
    assert cells[0].contender == cells[1].baseline == "plain loop"


def test_every_row_of_the_table_is_timed(case, expected):
    entries = [Entry(row, Setting()) for row in operator_contenders().values()]
    assert [entry.contender.name for entry in entries] == ["sdpa", *bistoch.OPERATORS]
    assert check(case, "forward", entries, expected)[1] == {}
    refused = check(case, "forward+backward", entries, expected)[1]
    assert set(refused) == {
        name for name, row in bistoch.OPERATORS.items() if not row.differentiable
    }


@pytest.mark.filterwarnings("ignore")  # what a library warns of is not ours to mend
@pytest.mark.parametrize("name", peer_contenders())
@pytest.mark.parametrize("scores", ["random", "peaked"])
def test_libraries_are_right_where_installed(name, scores, expected):
    peer = peer_contenders()[name]
    pytest.importorskip(peer.package)
    case = Case("n=24", "attention", (1, 2, 24, 8), scores)
    entries = [SDPA, Entry(peer, Setting())]
    assert check(case, "forward", entries, expected)[1] == {}
    refused = check(case, "forward+backward", entries, expected)[1]
    assert set(refused) == (set() if peer.has_gradient else {name})
    elastic = check(case, "forward", [SDPA, Entry(peer, Setting(0.5, 5))], expected)[1]
    assert set(elastic) == (set() if peer.any_lam else {name})
