"""Whose turn it is: a slider that moves asks many times, and only its last question counts."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

MOST_PAGES = 64


class Turns:
    """One question is answered at a time; of those that wait, only the newest of each page.

    >>> turns = Turns()
    >>> with turns.wait("page") as first:
    ...     first
    True
    """

    def __init__(self) -> None:
        self._answering, self._counting = threading.Lock(), threading.Lock()
        self._newest: OrderedDict[str, int] = OrderedDict()

    @contextmanager
    def wait(self, page: str) -> Iterator[bool]:
        """Wait for the turn of a question; whether it is still the newest of its page."""
        with self._counting:
            mine = self._newest.get(page, 0) + 1
            self._newest[page] = mine
            self._newest.move_to_end(page)
            while len(self._newest) > MOST_PAGES:
                self._newest.popitem(last=False)
        with self._answering:
            # a page that was forgotten asks again as a new one
            yield self._newest.get(page, mine) == mine
