"""Plans as shaded blocks in a terminal, side by side, with their row and column sums."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from rich.console import Console, ConsoleOptions
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text
from torch import Tensor

from bistoch.analysis.sums import ROUNDING, PlanSums, add_up

# from empty to full: in colours, dark to bright so that colour-blind eyes read it too, or in shades
COLOURS = (
    "#03051a", "#26114d", "#56147d", "#832681", "#b5367a",
    "#e24f63", "#f7835f", "#feba80", "#fcfdbf",
)  # fmt: skip
SHADES, ASCII_SHADES = " ░▒▓█", " .:-=+*#%@"
BARS, ASCII_BARS = " ▁▂▃▄▅▆▇█", " .:|"
# a weight below zero is a sign of its own
NEGATIVE, ASCII_NEGATIVE = "-", "~"
BAR_LINES = 3
OVERLOADED, IN_REACH, NEGLECTED = "#e69f00", "#9a9a9a", "#56b4e9"
# columns beyond this share of their target are called overloaded or neglected
REACH = 0.1
# so that three plans of ten tokens share a line of eighty characters
GAP = 2
# the width of a row sum: a blank and "1.00"
SUM_WIDTH = 5


class TerminalPlans:
    """Plans side by side as shaded blocks: row sums at the right, column sums as bars below.

    A renderable of `rich`: print it on a `rich.console.Console`. It sets as many plans on a line as
    the console is wide, and shades with characters where there are no colours. Weights below zero
    are minus signs.

    Args:
        plans: one matrix per label; all share one scale of shades and one of bars.

    >>> import torch
    >>> from rich.console import Console
    >>> plans = {"even": torch.full((2, 2), 0.5), "hard": torch.eye(2)}
    >>> Console(width=50, force_terminal=False, color_system=None).print(TerminalPlans(plans))
    even                   hard
    ▒▒▒▒ 1.00             ██   1.00
    ▒▒▒▒ 1.00                ██ 1.00
    ████╴1.00              ████╴1.00
    ████                   ████
    ████                   ████
    columns 1.00 to 1.00   columns 1.00 to 1.00
    """

    def __init__(self, plans: Mapping[str, Float[Tensor, "n m"]]):
        self._sums = {name: add_up(name, plan) for name, plan in plans.items()}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """Lay the panels out for this console."""
        if not self._sums:
            return
        pen = _choose_pen(self._sums, console, options)
        panels = [pen.panel(name, sums) for name, sums in self._sums.items()]
        width = min(options.max_width, max(line.cell_len for p in panels for line in p.split()))
        fitting = max(1, (options.max_width + GAP) // (width + GAP))
        # six plans where four would fit look better as three and three
        per_line = math.ceil(len(panels) / math.ceil(len(panels) / fitting))
        columns = (Column(width=width, no_wrap=True) for _ in range(per_line))
        grid = Table.grid(*columns, padding=(0, GAP, 0, 0))
        for first in range(0, len(panels), per_line):
            if first:
                grid.add_row()
            grid.add_row(*panels[first : first + per_line])
        yield grid


class _Pen(NamedTuple):
    """How to draw on this console: what full means, how wide a cell is, and with which signs."""

    heaviest: float
    tallest: float
    cell: int
    # so many rows and columns share one cell, where the plan is wider than the console
    pooled: int
    coloured: bool
    ascii_only: bool

    def panel(self, name: str, sums: PlanSums) -> Text:
        text = Text()
        text.append(f"{name}\n", style="bold")
        columns = _pool(sums.columns, self.pooled)
        for weights, total in zip(
            _pool(_pool(sums.plan, self.pooled).mT, self.pooled).mT,
            _pool(sums.rows, self.pooled).tolist(),
            strict=True,
        ):
            for weight in weights.tolist():
                self.shade(text, weight)
            text.append(f" {total:.2f}\n", style="dim")
        for line in reversed(range(BAR_LINES)):
            self.bars(text, columns.tolist(), line, sums.target)
        low, high = sums.columns.min().item(), sums.columns.max().item()
        uneven = high > (1 + REACH) * sums.target
        text.append("columns ", style="dim")
        text.append(f"{low:.2f} to {high:.2f}", style=OVERLOADED if uneven else "")
        if sums.has_negative:
            text.append(f"\n{self.negative} negative, to ", style="dim")
            text.append(f"{sums.plan.min().item():.2g}")
        return text

    @property
    def negative(self) -> str:
        return ASCII_NEGATIVE if self.ascii_only else NEGATIVE

    def shade(self, text: Text, weight: float) -> None:
        # small weights are many and tell much: a root lifts them out of the dark
        level = min(max(weight / self.heaviest, 0), 1) ** (0.5 if self.coloured else 0.7)
        if weight < -ROUNDING:
            style = Style(color=NEGLECTED, bgcolor=COLOURS[0]) if self.coloured else None
            text.append(self.negative * self.cell, style)
        elif self.coloured:
            text.append(" " * self.cell, Style(bgcolor=_pick(COLOURS, level)))
        else:
            text.append(_pick(ASCII_SHADES if self.ascii_only else SHADES, level) * self.cell)

    def bars(self, text: Text, columns: list[float], line: int, target: float) -> None:
        signs = ASCII_BARS if self.ascii_only else BARS
        for total in columns:
            filled = min(max(total / self.tallest * BAR_LINES - line, 0), 1)
            if total > (1 + REACH) * target:
                colour = OVERLOADED
            else:
                colour = NEGLECTED if total < (1 - REACH) * target else IN_REACH
            text.append(_pick(signs, filled) * self.cell, colour)
        # the target is written beside the line of bars it falls into
        if line == math.ceil(target / self.tallest * BAR_LINES) - 1:
            text.append(f"{'-' if self.ascii_only else '╴'}{target:.2f}", style="dim")
        text.append("\n")


def _choose_pen(by_name: Mapping[str, PlanSums], console: Console, options: ConsoleOptions) -> _Pen:
    widest = max(sums.plan.shape[1] for sums in by_name.values())
    room = max(1, options.max_width - SUM_WIDTH)
    return _Pen(
        heaviest=max(sums.plan.max().item() for sums in by_name.values()) or 1.0,
        tallest=max(sums.columns.max().item() for sums in by_name.values()) or 1.0,
        # two characters side by side are about a square
        cell=2 if 2 * widest <= room else 1,
        pooled=math.ceil(widest / room),
        coloured=console.color_system is not None and not console.no_color,
        ascii_only=options.ascii_only,
    )


def _pick(scale: str | tuple[str, ...], level: float) -> str:
    return scale[round(level * (len(scale) - 1))]


def _pool(values: Tensor, size: int) -> Tensor:
    """Means of neighbours along the first axis, `size` at a time."""
    return torch.stack([some.mean(0) for some in values.split(size)])
