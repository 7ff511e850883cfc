"""The report of a flow: text, tables and figures, on the terminal too, with a record beside it."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from bistoch.flows import FlowState
from bistoch.lab.device import CPU
from bistoch.lab.drawing import PALETTE, row, tidy
from bistoch.lab.flow.figures import animate, draw_order
from bistoch.lab.flow.trajectory import Trajectory, follow
from bistoch.lab.machine import provenance
from bistoch.lab.report import Report

# a title, what x is, and curves: a label, x, errors, and the predicted order
Curve = tuple[str, Sequence[float], Sequence[float], float]
Panel = tuple[str, str, Sequence[Curve]]


class FlowReport(Report):
    """A report in a folder, with the flows that it shows.

    Args:
        command: the flow, such as "gaussian".
        title: the heading.
        out: the folder.
        console: for progress and tables.
        device: where particles move.
        options: those of the command, by name; None and False are left out.
    """

    def __init__(
        self,
        command: str,
        title: str,
        out: Path,
        console: Console,
        device: torch.device = CPU,
        **options: Any,
    ):
        if device.type != "cpu":
            options["device"] = device
        words = ["bistoch flow", command]
        for name, value in options.items():
            if value is True:
                words.append(f"--{name}")
            elif value is not None and value is not False:
                words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
        self.command, self.out, self.terminal = " ".join(words), out, console
        self.device = device
        super().__init__(title, self.command, console)

    def follow(
        self,
        name: str,
        particles: Tensor,
        time: float,
        eps: float,
        measure: Callable[[FlowState], dict[str, float]],
        keep: int,
        **options: Any,
    ) -> Trajectory:
        """A flow with about `keep` snapshots after the start; its warnings are shown."""
        found = follow(
            name, particles, time, eps, measure=measure, console=self.terminal, folder=self.out,
            keep=[time * place / keep for place in range(keep + 1)], device=self.device, **options,
        )  # fmt: skip
        self.warn(found.warnings)
        return found

    def numbers(self, title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table in the page, on the terminal and in the record."""
        self.table(head, rows, title, printed=True)

    def orders(self, title: str, caption: str, panels: Sequence[Panel]) -> None:
        """Errors on logarithmic axes beside their predicted slopes, and a table of the orders."""
        figure, axes = row(len(panels))
        rows: list[tuple[object, ...]] = []
        for one, (name, xlabel, curves) in zip(axes, panels, strict=True):
            for colour, (label, x, y, predicted) in zip(PALETTE, curves, strict=False):
                fitted = draw_order(one, x, y, label, colour, predicted)
                reach = f"{x[0]:g} to {x[-1]:g}"
                ends = f"{y[0]:.1e}", f"{y[-1]:.1e}"
                rows.append((f"{name}: {label}", predicted, fitted, xlabel, reach, *ends))
            tidy(one, name, xlabel, "root mean square error" if one is axes[0] else "")
        head = ("error", "predicted", "fitted", "over", "from", "first error", "last error")
        self.numbers(title, head, rows)
        self.figure(figure, f"{caption} Dashed lines have the predicted slope.")

    def animation(
        self,
        name: str,
        caption: str,
        frames: Iterable[Any],
        paint: Callable[[Any, Any], None],
        *,
        photos: bool = False,
        **options: Any,
    ) -> None:
        """A moving picture in the page and as `figures/<name>.gif`; see `animate`."""
        self.image(animate(frames, paint, **options), caption, "gif", name, photos=photos)

    def finish(self, **numbers: Any) -> Path:
        """Write page and record; the path of the page."""
        record = provenance(self.command) | {"title": self.title, "tables": self.tables()}
        record |= {**numbers, "warnings": self.warnings}
        return self.write(self.out / "report.html", record=record)


def check_index(command: str, index: int, count: int) -> None:
    """Check the place of an example in a data set.

    >>> check_index("flow image", 3, 4)
    """
    if not 0 <= index < count:
        raise ValueError(
            f"{command}: index must be from 0 to {count - 1}, the examples of the data set, but it "
            f"is {index}"
        )
