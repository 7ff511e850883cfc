"""Who is in how many result lists, before and after a correction."""

from typing import NamedTuple

import numpy as np


class Occurrences(NamedTuple):
    """In how many result lists each document is: `counts`, one number per document.

    >>> import numpy as np
    >>> found = Occurrences(np.array([0, 4, 1, 0]))
    >>> found.largest, found.never, found.hubs(1)
    (4, 0.5, [(1, 4)])
    """

    counts: np.ndarray

    @property
    def largest(self) -> int:
        """The lists that the most frequent document is in."""
        return int(self.counts.max())

    @property
    def never(self) -> float:
        """The share of documents that are in no list."""
        return float((self.counts == 0).mean())

    def hubs(self, count: int = 10) -> list[tuple[int, int]]:
        """The most frequent documents: position and number of lists."""
        order = np.argsort(-self.counts, kind="stable")[:count]
        return [(int(i), int(self.counts[i])) for i in order]


class HubReport(NamedTuple):
    """Result lists of length `k` for `queries` queries, before and after the correction."""

    k: int
    queries: int
    before: Occurrences
    after: Occurrences

    def __str__(self) -> str:
        lines = [
            f"top {self.k} of {self.queries} queries over {len(self.before.counts)} documents",
            f"{'':24}{'before':>10}{'after':>10}",
            f"{'largest hub, lists':24}{self.before.largest:>10}{self.after.largest:>10}",
            f"{'documents never found':24}{self.before.never:>10.1%}{self.after.never:>10.1%}",
            "",
            f"{'hub (document)':24}{'before':>10}{'after':>10}",
        ]
        for place, count in self.before.hubs():
            lines.append(f"{place:<24}{count:>10}{int(self.after.counts[place]):>10}")
        return "\n".join(lines)
