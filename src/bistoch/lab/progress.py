"""The one progress display: items and steps within them with the time left, or plain lines."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

# seconds between two lines within an item, where there is no terminal
LINE_EVERY = 60.0


class Display:
    """What a long job tells about itself.

    Args:
        console: where it is shown.
        total: the number of items.
        bars: the moving bars of a terminal; None where lines are printed instead.
        animated: whether the bars also move between two reports, from a thread of their own.
    """

    def __init__(self, console: Console, total: int, bars: Progress | None, *, animated: bool):
        self.console, self.total = console, total
        self._bars, self._animated = bars, animated
        self._done = self._kept = 0
        self._began = time.monotonic()
        self._share, self._drawn = 0.0, -1.0
        self._name, self._printed = "", self._began
        if bars is not None:
            self._all = bars.add_task("", total=total)
            self._item = bars.add_task("", total=None, visible=False)

    def start(self, name: str) -> None:
        """The next item begins."""
        self._share, self._name = 0.0, name
        if self._bars is not None:
            self._bars.update(self._all, description=self._words(name))
            self._bars.update(self._item, visible=False, completed=0, total=None)
            self._draw(now=True)

    def step(self, done: int, total: int, text: str = "") -> None:
        """So many steps of the present item are done; in a log file a line every minute."""
        self._share = done / max(total, 1)
        if self._bars is None and time.monotonic() - self._printed >= LINE_EVERY:
            self._printed = time.monotonic()
            left = self.time_left()
            said = (f": {text}" if text else "") + (f" ({left} left)" if left else "")
            self.print(f"{self._name}, step {done}/{total}{said}")
        if self._bars is not None:
            self._bars.update(
                self._item, completed=done, total=total, visible=True, description=text
            )
            self._bars.update(self._all, description=self._words(None))
            self._draw()

    def finish(self, name: str, text: str = "", *, kept: bool = False) -> None:
        """An item is done, now or, if `kept`, in an earlier run."""
        self._done, self._kept, self._share = self._done + 1, self._kept + kept, 0.0
        if self._bars is not None:
            self._bars.update(self._all, completed=self._done, description=self._words(name))
            self._draw(now=True)
        elif not kept:
            self._printed = time.monotonic()
            said = f": {text}" if text else ""
            left = self.time_left()
            left = f" ({left} left)" if left else ""
            self.print(f"{self._done}/{self.total} {name}{said}{left}")

    def print(self, sentence: str, style: str | None = None) -> None:
        """A line that stays, above the bars."""
        self.console.print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)

    def time_left(self) -> str:
        """About how long the rest will take, from the items that ran; empty while unknown."""
        ran = self._done - self._kept + self._share
        if ran < 0.02 or self._done >= self.total:
            return ""
        seconds = (time.monotonic() - self._began) / ran * (self.total - self._done - self._share)
        return duration(seconds)

    def _words(self, name: str | None) -> str:
        if name is not None:
            self._name = name
        left = self.time_left()
        return f"{self._name}, {left} left" if left else self._name

    def _draw(self, *, now: bool = False) -> None:
        # animated bars are drawn by their own thread; others a few times a second at most
        if self._bars is None or self._animated:
            return
        if now or time.monotonic() - self._drawn > 0.2:
            self._drawn = time.monotonic()
            self._bars.refresh()


@contextmanager
def progress(console: Console, total: int, *, animated: bool = True) -> Iterator[Display]:
    """A display for `total` items; an interrupted job says that it can be resumed.

    Args:
        console: bars move on a terminal; elsewhere every finished item is a line.
        total: the number of items.
        animated: False draws only when something is reported, so that timings are not disturbed.

    >>> import io
    >>> console = Console(file=io.StringIO(), width=80)
    >>> with progress(console, 2) as shown:
    ...     for name in ("a", "b"):
    ...         shown.start(name)
    ...         shown.finish(name, "0.5", kept=name == "a")
    >>> console.file.getvalue().strip()
    '2/2 b: 0.5'
    """
    try:
        if not console.is_terminal:
            yield Display(console, total, None, animated=False)
            return
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=console, transient=True, auto_refresh=animated) as bars:
            yield Display(console, total, bars, animated=animated)
    except KeyboardInterrupt:
        console.print("interrupted; the same command resumes from here", highlight=False)
        raise


def duration(seconds: float) -> str:
    """A length of time in one or two units.

    >>> duration(0.2), duration(75), duration(7260)
    ('1 s', '2 min', '2 h 1 min')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
