"""How time and memory grow with n: the exponent of a power law through the measured sizes."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from bistoch.lab.bench.measure import Cell

# shorter sequences mostly show the price of a call
SHORTEST = 256


def growth_rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row per contender, setting, scores and direction that was measured at several n."""
    groups = defaultdict(list)
    for cell in cells:
        if cell.case.startswith("n=") and cell.seconds is not None:
            # other heads or features would not be the same curve
            *batch, _, d = cell.shape
            groups[
                cell.contender, cell.lam, cell.iters, cell.scores, cell.direction, *batch, d
            ].append(cell)
    rows = []
    for (contender, lam, iters, scores, direction, *_), group in groups.items():
        time = exponent([(cell.shape[-2], cell.seconds) for cell in group])
        memory = exponent([(cell.shape[-2], cell.memory) for cell in group])
        if time is not None:
            rows.append({
                "contender": contender, "lam": lam, "iters": iters, "scores": scores,
                "direction": direction, "time": time, "memory": memory,
            })  # fmt: skip
    return rows


def exponent(points: Sequence[tuple[int, float | None]]) -> float | None:
    """The slope of the best line through log(value) over log(n); None for fewer than two sizes.

    >>> exponent([(256, 1.0), (512, 4.0), (1024, 16.0)])
    2.0
    """
    known = [(n, value) for n, value in points if value]
    long = [(n, value) for n, value in known if n >= SHORTEST]
    used = long if len(long) >= 2 else known
    if len({n for n, _ in used}) < 2:
        return None
    x, y = [math.log(n) for n, _ in used], [math.log(value) for _, value in used]
    middle, height = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True))
    return round(rise / sum((a - middle) ** 2 for a in x), 2)
