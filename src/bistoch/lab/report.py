"""A report: text, tables and pictures in one HTML file that needs nothing from outside."""

import base64
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from bistoch.lab.drawing import to_png
from bistoch.lab.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# nothing but what the file itself holds may be loaded, not even by mistake
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #8884; }
td { white-space: nowrap; } td.words { white-space: normal; }
.words, th:first-child, td:first-child { text-align: left; }
figure { margin: 1.5rem 0; overflow-x: auto; }
figure img { max-width: 100%; background: white; border-radius: .25rem; }
/* on a telephone a picture is pushed aside, not shrunk until nobody can read it */
@media (max-width: 45rem) { figure img { max-width: 48rem; } }
figcaption { opacity: .75; font-size: .9rem; position: sticky; left: 0; }
pre { overflow-x: auto; padding: .75rem; background: #8881; }
"""


class Report:
    """A page built from top to bottom and written in one step.

    Args:
        title: the heading of the page.
        command: the words that make the page again, shown below the heading.

    >>> import tempfile
    >>> report = Report("Plans", "bistoch show")
    >>> report.text("Columns of two operators.")
    >>> report.table(("operator", "largest column"), [("softmax", 3.2), ("sinkhorn", 1.0)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = report.write(Path(folder) / "report.html").read_text(encoding="utf-8")
    >>> '<td class="words">softmax</td><td>3.2</td>' in page, "http:" in page
    (True, False)
    """

    def __init__(self, title: str, command: str = "") -> None:
        self.title = title
        self._parts: list[str] = []
        if command:
            self.code(command)

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def code(self, text: str) -> None:
        """Words as they are typed, such as the command that makes the page again."""
        self._parts.append(f"<pre>{escape(text)}</pre>")

    def table(
        self, head: Sequence[str], rows: Sequence[Sequence[object]], caption: str = ""
    ) -> None:
        """A table; numbers are shown as they are printed, so round them first.

        A column with a word in it is set to the left and may be broken into lines.
        """
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(head)
        kinds = [' class="words"' if any(map(_is_word, column)) else "" for column in columns]
        titles = "".join(
            f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, head, strict=True)
        )
        lines = "".join(
            "<tr>"
            + "".join(
                f"<td{kind}>{escape(str(cell))}</td>" for kind, cell in zip(kinds, row, strict=True)
            )
            + "</tr>"
            for row in rows
        )
        note = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        self._parts.append(
            f"<figure>{note}<table><thead><tr>{titles}</tr></thead>"
            f"<tbody>{lines}</tbody></table></figure>"
        )

    def figure(self, figure: "Figure", caption: str) -> None:
        """A picture of matplotlib; the caption is also what a screen reader says."""
        self.image(to_png(figure), caption)

    def image(self, content: bytes, caption: str, kind: str = "png") -> None:
        """A picture that exists as a file already: png, gif, jpeg or svg+xml."""
        data = base64.b64encode(content).decode()
        words = escape(caption)
        self._parts.append(
            f'<figure><img alt="{words}" src="data:image/{kind};base64,{data}">'
            f"<figcaption>{words}</figcaption></figure>"
        )

    def write(self, path: Path) -> Path:
        """Write the page; it is there whole or not at all."""
        title = escape(self.title)
        page = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
            + "\n".join(self._parts)
            + "\n</body></html>\n"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page.encode())
        return path


def _is_word(cell: object) -> bool:
    """Whether a cell is read and not compared: not made of numbers, and not the sign for none.

    >>> [_is_word(cell) for cell in ("elastic", "69.8 ± 1.1", "72,010", "+0.3 [-1.0, +1.6]", 1e-9)]
    [True, False, False, False, False]
    """
    words = re.split(r"[\s,±\[\]()%]+", str(cell))
    return not all(word in ("", "-") or _is_number(word) for word in words)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
