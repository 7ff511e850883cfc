"""A report: text, tables, figures and verdicts as one HTML file, as Markdown, on the terminal.

The HTML file holds all that it shows, and loads nothing. What it looks like is in the two templates
beside this file; jinja2 escapes whatever is put into them.
"""

import base64
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bistoch.lab.drawing import to_png
from bistoch.lab.files import write_whole
from bistoch.lab.stats import Verdict
from bistoch.lab.store import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

# letters of a name in a table of the terminal that are never broken
NAME = 20
# a caption of at most so many letters is the title of a table on the terminal
TITLE = 80
SMOKE = "This is a smoke run: it shows that everything works, and its numbers mean nothing."


class Table(NamedTuple):
    """A table: floats in it are shown with four digits, all else as it is printed."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""


class Report:
    """A page that opens with what was found, is built from top to bottom and written in one step.

    Args:
        title: the heading of the page.
        command: the command that makes the page again, shown at its end.
        console: what is `printed` goes to this terminal too.

    >>> import tempfile
    >>> report = Report("Plans", "bistoch show")
    >>> report.finding("Balance takes the largest column from 3.2 to 1.")
    >>> report.table(("operator", "largest column"), [("softmax", 3.2), ("sinkhorn", 1.0)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = report.write(Path(folder) / "report.html").read_text(encoding="utf-8")
    >>> '<td class="text">softmax</td><td>3.2</td>' in page, "http:" in page
    (True, False)
    """

    def __init__(self, title: str, command: str = "", console: "Console | None" = None) -> None:
        self.title, self.console, self._command = title, console, command
        self._parts: list[dict[str, Any]] = []
        self._opening: list[dict[str, Any]] = []
        self._files: dict[str, bytes] = {}
        self.warnings: list[str] = []

    def finding(
        self,
        sentence: str,
        figure: "Figure | Callable[[], Figure] | None" = None,
        caption: str = "",
        name: str = "",
        **more: Any,
    ) -> None:
        """What was found, in a sentence or two and a figure: it opens the page, and is printed.

        It may come when all else is known; what comes later is shown below. `figure`, `caption`,
        `name` and `more` are those of `figure`.
        """
        own, self._parts = self._parts, self._opening
        self._parts.append({"kind": "finding", "text": sentence})
        self._print(sentence)
        if figure is not None:
            self.figure(figure, caption, name, **more)
        self._parts = own

    @contextmanager
    def folded(self, summary: str) -> Iterator[None]:
        """What is added inside is hidden behind this sentence until a reader opens it."""
        self._parts.append({"kind": "fold", "text": summary})
        yield
        self._parts.append({"kind": "unfold"})

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._parts.append({"kind": "heading", "text": text})

    def text(self, text: str, *, printed: bool = False) -> None:
        """A paragraph."""
        self._parts.append({"kind": "text", "text": text})
        if printed:
            self._print(text)

    def code(self, text: str) -> None:
        """Text as it is typed, such as the command that makes the page again."""
        self._parts.append({"kind": "code", "text": text})

    def table(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[object]],
        caption: str = "",
        *,
        printed: bool = False,
    ) -> None:
        """A table; a column with words in it is set to the left and may be broken into lines."""
        shown = [[show(cell) for cell in row] for row in rows]
        columns = zip(*shown, strict=True) if rows else ([] for _ in head)
        words = [any(map(_is_words, column)) for column in columns]
        self._parts.append(
            {
                "kind": "table",
                "head": head,
                "rows": shown,
                "numbers": rows,
                "words": words,
                "caption": caption,
            }
        )
        if printed and self.console is not None:
            print_table(self.console, Table(head, rows, caption))

    def verdicts(self, verdicts: Sequence[Verdict], *, printed: bool = False) -> None:
        """Claims beside what was measured, and whether it agrees."""
        self._parts.append({"kind": "verdicts", "verdicts": verdicts})
        if printed and verdicts and self.console is not None:
            print_table(self.console, Table(("claim", "measured here", "holds"), verdicts))

    def figure(
        self,
        figure: "Figure | Callable[[], Figure]",
        caption: str,
        name: str = "",
        *,
        photos: bool = False,
        narrow: "Callable[[], Figure] | None" = None,
    ) -> None:
        """A figure of matplotlib, or a function that draws one.

        Args:
            figure: of a function that finds matplotlib missing, the page says so instead.
            caption: is also what a screen reader says.
            name: of a file of its own, `figures/<name>.png` beside the page.
            photos: whether it shows pictures, which dark mode must not turn into negatives.
            narrow: draws the same with panels below each other, for telephones.
        """
        try:
            content = to_png(figure() if callable(figure) else figure)
            slim = None if narrow is None else to_png(narrow())
        except ImportError as missing:
            self.text(f"No figure: {missing}", printed=True)
            return
        self.image(content, caption, name=name, photos=photos, narrow=slim)

    def image(
        self,
        content: bytes,
        caption: str,
        kind: str = "png",
        name: str = "",
        *,
        photos: bool = False,
        narrow: bytes | None = None,
    ) -> None:
        """An image that exists as a file already: png, gif, jpeg or svg+xml."""
        file = f"figures/{name}.{kind.removesuffix('+xml')}" if name else ""
        if file:
            self._files[file] = content
        source, slim = (
            f"data:image/{kind};base64,{base64.b64encode(one).decode()}" if one else ""
            for one in (content, narrow)
        )  # fmt: skip
        part = {"kind": "image", "source": source, "caption": caption, "file": file}
        self._parts.append({**part, "photos": photos, "narrow": slim})

    def warn(self, sentences: Sequence[str]) -> None:
        """Warnings of a run, in the page and on the terminal, each once."""
        for sentence in sentences:
            if sentence not in self.warnings:
                self.warnings.append(sentence)
                self.text(f"Warning: {sentence}")
                self._print(f"warning: {sentence}", style="yellow")

    def tables(self) -> dict[str, dict[str, Any]]:
        """All tables by caption, for a record."""
        return {
            part["caption"]: {
                "heads": list(part["head"]),
                "rows": [list(x) for x in part["numbers"]],
            }
            for part in self._parts
            if part["kind"] == "table"
        }

    def write(
        self,
        path: Path,
        *,
        markdown: bool = False,
        record: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the page and the files beside it, each in one step; the path of the page.

        Args:
            path: of the page.
            markdown: whether to write the same as Markdown, under the same name.
            record: is written as JSON under the same name.
        """
        files = {path: self._render("page.html.jinja")}
        if markdown:
            files[path.with_suffix(".md")] = self._render("page.md.jinja")
        if record is not None:
            text = json.dumps(plain(record), indent=1, ensure_ascii=False)
            files[path.with_suffix(".json")] = text.encode()
        files |= {path.parent / name: content for name, content in self._files.items()}
        for file, whole in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, whole)
        self._print(f"report: {path}")
        return path

    def _render(self, template: str) -> bytes:
        return _templates().get_template(template).render(
            title=self.title, parts=[*self._opening, *self._parts], command=self._command
        ).encode()  # fmt: skip

    def _print(self, text: str, style: str | None = None) -> None:
        if self.console is not None:
            self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def print_table(console: "Console", table: Table) -> None:
    """A table on the terminal: names to the left, numbers to the right and never broken.

    Where it is too wide, standard deviations go first, and then the last columns.
    """
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    rows, room = [[show(cell) for cell in row] for row in table.rows], console.width - 1
    if sum(_widths(table.head, rows)) > room:
        rows = [[re.sub(r" ± \S+", "", cell) for cell in row] for row in rows]
    widths = _widths(table.head, rows)
    kept = len(widths)
    while kept > 2 and sum(widths[:kept]) > room:
        kept -= 1
    words = [any(_is_words(row[place]) for row in rows) for place in range(kept)]
    whole = [
        max(len(name), *(len(row[place]) for row in rows), 0)
        for place, name in enumerate(table.head[:kept])
    ]
    # names share what numbers leave
    spare = max(0, room - sum(widths[:kept])) // max(1, sum(words))
    fits = sum(whole) + 2 * kept <= room
    made = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(table.head[:kept]):
        narrow = min(whole[place], widths[place] - 2 + (spare if words[place] else 0))
        made.add_column(
            Text(name), justify="left" if words[place] or place == 0 else "right", overflow="fold",
            width=whole[place] if fits else narrow,
        )  # fmt: skip
    for row in rows:
        made.add_row(*map(Text, row[:kept]))
    is_title = len(table.caption) <= TITLE
    if table.caption and is_title:
        console.print(Text(f"\n{table.caption}", style="bold"))
    console.print(made)
    left = f"Not shown here: {', '.join(table.head[kept:])}. " if kept < len(widths) else ""
    if note := left + ("" if is_title else table.caption):
        console.print(Text(note, style="dim"))


def _widths(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """What columns need: numbers and the words of a heading stay whole, long names may break."""
    widths = []
    for place, name in enumerate(head):
        cells = [row[place] for row in rows]
        limit = NAME if any(map(_is_words, cells)) else 1000
        longest = max((len(cell) for cell in cells), default=0)
        widths.append(max(min(longest, limit), *(len(word) for word in name.split() or [""])) + 2)
    return widths


def show(cell: object) -> str:
    """A cell of a table as text.

    >>> show(0.123456), show(12), show("12 %")
    ('0.1235', '12', '12 %')
    """
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


@functools.cache
def _templates() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined,
        autoescape=lambda name: name is None or not name.endswith(".md.jinja"), trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    # in Markdown a table must stay a table, and what looks like a tag must stay text
    environment.filters["cell"] = lambda text: re.sub(
        r"\s*\n\s*", " ", str(text).replace("|", "\\|").replace("<", "&lt;")
    )
    return environment


def _is_words(cell: str) -> bool:
    """Whether a cell is read and not compared: not made of numbers, and not the sign for none.

    >>> [_is_words(cell) for cell in ("elastic", "69.8 ± 1.1", "72,010", "+0.3 [-1.0, +1.6]", "-")]
    [True, False, False, False, False]
    """
    pieces = re.split(r"[\s,±\[\]()%]+", cell)
    return not all(piece in ("", "-") or _is_number(piece) for piece in pieces)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
