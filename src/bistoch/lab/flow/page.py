"""The end of a run: one page, its numbers as JSON, and a table on the terminal."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bistoch.lab.files import write_whole
from bistoch.lab.report import Report


class Page:
    """A report that is also told on the terminal, with its numbers beside it as JSON.

    Args:
        title: the heading.
        command: the words that make it again.
        out: the folder.
        console: where to print.
    """

    def __init__(self, title: str, command: str, out: Path, console: Console):
        self.report, self.out, self.console = Report(title, command), out, console
        self.numbers: dict[str, Any] = {"title": title, "command": command, "tables": {}}
        self._warned: set[str] = set()

    def table(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table in the page, on the terminal and in the numbers."""
        shown = [[_show(cell) for cell in row] for row in rows]
        self.report.table(heads, shown, title)
        self.numbers["tables"][title] = {"heads": list(heads), "rows": [list(row) for row in rows]}
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for number, head in enumerate(heads):
            # a heading may be broken between words, a number never
            width = max(len(word) for word in (*head.split(), *(row[number] for row in shown), ""))
            justify: Any = "right" if number else "left"
            table.add_column(head, justify=justify, min_width=width, overflow="fold")
        for row in shown:
            table.add_row(*row)
        self.console.print(f"\n[bold]{title}[/bold]", highlight=False)
        self.console.print(table)

    def figure(self, figure: Any, caption: str) -> None:
        """A picture in the page."""
        self.report.figure(figure, caption)

    def animation(self, content: bytes, name: str, caption: str) -> None:
        """A moving picture, in the page and as a file of its own."""
        self.report.image(content, caption, "gif")
        write_whole(self.out / name, content)
        self.console.print(f"wrote {self.out / name}", highlight=False, soft_wrap=True)

    def heading(self, text: str) -> None:
        """Begin a section of the page."""
        self.report.heading(text)

    def text(self, text: str) -> None:
        """A paragraph of the page."""
        self.report.text(text)

    def warn(self, sentences: Sequence[str]) -> None:
        """Warnings of a run, in the page and on the terminal, each once."""
        for sentence in sentences:
            if sentence not in self._warned:
                self._warned.add(sentence)
                self.report.text(f"Warning: {sentence}")
                self.console.print(f"warning: {sentence}", style="yellow", highlight=False)

    def write(self) -> Path:
        """Write the page and its numbers; return the path of the page."""
        content = json.dumps({**self.numbers, "warnings": sorted(self._warned)}, indent=1)
        write_whole(self.out / "flow.json", content.encode())
        path = self.report.write(self.out / "report.html")
        for written in (self.out / "flow.json", path):
            self.console.print(f"wrote {written}", highlight=False, soft_wrap=True)
        return path


def check_index(verb: str, index: int, count: int) -> None:
    """Check the place of an example in a data set.

    >>> check_index("flow image", 3, 4)
    """
    if not 0 <= index < count:
        raise ValueError(
            f"{verb}: index must be from 0 to {count - 1}, the examples of the data set, but it is "
            f"{index}"
        )


def _show(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
