"""What a terminal shows while operators are trained: a table that moves, or lines if it cannot."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bistoch.lab.compare.cells import Cell
from bistoch.lab.compare.plan import Comparison
from bistoch.lab.compare.summary import rows_of, score_text
from bistoch.lab.train import Setup, StepInfo, Task


class Board:
    """The state of a comparison, and how it looks.

    Args:
        comparison: what is compared.
        task: what is learned.
        console: where to show it.
    """

    def __init__(self, comparison: Comparison, task: Task, console: Console):
        self.comparison, self.task, self.console = comparison, task, console
        self.cells: list[Cell] = []
        self.now: tuple[Setup, StepInfo] | None = None
        self.began, self.live = time.monotonic(), None  # type: float, Live | None
        tried = len(comparison.rates) * len(comparison.operators)
        again = len(comparison.operators) if comparison.rates else 0
        self.total = tried - again + len(comparison.seeds) * len(comparison.operators)

    def step(self, setup: Setup, moment: StepInfo) -> None:
        """A run made a step."""
        self.now = setup, moment
        self.show()

    def finish(self, cell: Cell) -> None:
        """A run is done, now or before."""
        # of several rates the chosen one comes again at the end
        is_new = all(cell.folder != other.folder for other in self.cells)
        self.cells.append(cell)
        self.now = None
        if self.live is None and is_new:
            name, setup = self.task.score_name, cell.setup
            percent = " %" if name == "accuracy" else ""
            said = cell.diverged or (
                f"test {name} {score_text([cell.result['test'][name]], self.task)}{percent}"
            )
            self.console.print(
                f"{setup.operator}, seed {setup.seed}, rate {setup.recipe.lr:g}: {said}",
                highlight=False, markup=False,
            )  # fmt: skip
        self.show()

    def show(self) -> None:
        """Draw again, if that is due."""
        if self.live is not None:
            self.live.update(self.render())

    def render(self) -> Group:
        """The table, and a line about all."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("operator", "seeds", "now", "epoch", "loss", f"test {self.task.score_name}"):
            table.add_column(name, justify="left" if name in ("operator", "now") else "right")
        for row in rows_of(self.comparison, self.cells):
            bar, epoch, loss = self._now(row.operator)
            done = len(row.cells) + len(row.diverged)
            score = score_text(row.test(self.task.score_name), self.task) if row.cells else ""
            table.add_row(
                escape(row.operator), f"{done}/{len(self.comparison.seeds)}", bar, epoch, loss,
                score + (f" ({len(row.diverged)} diverged)" if row.diverged else ""),
            )  # fmt: skip
        done = len({cell.folder for cell in self.cells})
        seconds = time.monotonic() - self.began
        line = f"{done} of {self.total} runs, {seconds:.0f} s; a stopped comparison goes on"
        return Group(table, Text(line, style="dim"))

    def _now(self, operator: str) -> tuple[ProgressBar | str, str, str]:
        if self.now is None or self.now[0].operator != operator:
            return "", "", ""
        moment = self.now[1]
        bar = ProgressBar(total=moment.steps, completed=moment.step, width=20)
        return bar, f"{moment.epoch}/{self.comparison.recipe.epochs}", f"{moment.loss:.3f}"


@contextmanager
def board(comparison: Comparison, task: Task, console: Console) -> Iterator[Board]:
    """A board that moves while the block runs."""
    made = Board(comparison, task, console)
    if not console.is_terminal:
        yield made
        return
    # the table is drawn a few times a second, whatever the number of steps
    with Live(made.render(), console=console, refresh_per_second=4, transient=True) as live:
        made.live = live
        try:
            yield made
        finally:
            made.live = None
