"""Where to compute dense rows of delta attention: rules that know the past, and hindsight.

Part of `delta_variants.py`. Rows count from the first one that may lose a key, which is dense.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

STRIDE = 16  # rows for one dense one
LONGEST = 8 * STRIDE  # between two dense rows, in hindsight


def place(signal: Callable[[list[int], int], float], threshold: float, n: int) -> list[int]:
    """Dense rows where a signal passes a threshold, about one in STRIDE, knowing only the past.

    Every row earns 1 / STRIDE of a dense one. Up to four may be borrowed or saved, and the
    threshold rises with every dense row and falls between them.
    """
    rows, credit, most = [0], 0.0, 4
    for i in range(1, n):
        credit += 1 / STRIDE
        passed = signal(rows, i) > threshold and credit > 1 - most
        if passed or credit >= most:
            rows.append(i)
            credit -= 1
        threshold *= math.exp(0.3 * ((rows[-1] == i) - 1 / STRIDE))
    return rows


def by_query(q: Tensor, first: int) -> list[int]:
    """Where the query has moved away from that of the last dense row, relative to earlier moves."""
    usual = (q[STRIDE:] - q[:-STRIDE]).norm(dim=-1).cumsum(0)
    usual = usual / torch.arange(1, len(usual) + 1)
    away = torch.cdist(q[first:], q[first:]) / usual[first - STRIDE :, None]
    table = away.tolist()
    return place(lambda rows, i: table[rows[-1]][i], 1.0, len(away))


def by_delta(delta: Tensor) -> list[int]:
    """The sooner, the more the delta changed between the last two dense rows."""
    table, seen = torch.cdist(delta, delta).tolist(), [0, 0.0, 1.0]

    def signal(rows: list[int], i: int) -> float:
        if len(rows) > max(1, seen[0]):
            last = table[rows[-2]][rows[-1]]
            mean = seen[1] = (seen[1] * (len(rows) - 2) + last) / (len(rows) - 1)
            seen[0], seen[2] = len(rows), last / max(mean, 1e-12)
        return (i - rows[-1]) * seen[2]

    return place(signal, float(STRIDE), len(delta))


def placed(errors: Tensor, rows: list[int]) -> float:
    """The sum of squared errors with given dense rows."""
    n = len(errors)
    last = torch.bucketize(torch.arange(n), torch.tensor(rows), right=True) - 1
    return errors[torch.tensor(rows)[last], torch.arange(n)].sum().item()


def best_placed(errors: Tensor, count: int) -> float:
    """The least that so many dense rows can reach, the first of them row 0 (dynamic programme)."""
    n, starts = len(errors), torch.arange(len(errors))
    ends = torch.arange(n + 1)[:, None] - torch.arange(1, LONGEST + 1)
    band = (starts[:, None] + torch.arange(LONGEST)).clamp(max=n - 1)
    sums = errors.gather(1, band).cumsum(1)  # of rows g to g + length - 1
    cost = sums[ends.clamp(min=0), torch.arange(LONGEST)].masked_fill(ends < 0, math.inf)
    best = torch.full((n + 1,), math.inf, dtype=errors.dtype)
    best[0] = 0
    for _ in range(count):
        best = (best[ends.clamp(min=0)] + cost).amin(1)
    return best[n].item()
