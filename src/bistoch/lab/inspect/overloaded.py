"""The most overloaded head: what its fullest key collects, before and after balance."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.lab.compare.attention import column_loads

# neighbours of a token that a diagonal may lie on, and the weight there that is called one
OFFSETS, CLEAR = range(-3, 4), 0.4
WORDS = {-1: "the token before", 0: "the token itself", 1: "the next token"}


class Overloaded(NamedTuple):
    """One head on one sample, before balance and after it (None if nothing was swapped in).

    Sums are column sums: with n queries, n units are given out. Loads are relative to the even
    share, or to that of uniform causal attention.
    """

    layer: int
    head: int
    sample: int
    token: str
    queries: int
    causal: bool
    before: Float[Tensor, "n m"]
    after: Float[Tensor, "n m"] | None
    lam: float | None

    @property
    def key(self) -> int:
        """The fullest key before balance."""
        return int(_loads(self.before, self.causal).argmax())

    def sentence(self, *, most: bool = False) -> str:
        """What was found, in one or two sentences; `most` says that no other head is fuller."""
        head = f"Layer {self.layer}, head {self.head}" + " is the most overloaded" * most
        if self.causal:
            load = _loads(self.before, True).max()
            found = (
                f'{head}: the key "{self.token}" receives {load:.1f} times what it would receive if'
            )
            found += " every query spread evenly over the tokens before it"
            after = "" if self.after is None else f"{_loads(self.after, True).max():.1f} times"
        else:
            total = self.before.sum(0)[self.key]
            found = (
                f'{head}: the key "{self.token}" collects {total:.1f} of the {self.queries} units'
            )
            found += f" that {self.queries} queries give out"
            after = "" if self.after is None else f"{self.after.sum(0).max():.1f}"
        if self.after is None:
            return f"{found}."
        found += f"; with lam = {self.lam:g} in this head no key receives more than {after}."
        return found + self._diagonal_sentence()

    @property
    def revealed(self) -> float:
        """How much weight balance adds to the diagonal that it makes clear; 0 if it does not."""
        _, before, after = self.diagonal()
        return after - before if after >= CLEAR and after - before >= CLEAR / 2 else 0.0

    def _diagonal_sentence(self) -> str:
        offset, before, after = self.diagonal()
        if not self.revealed:
            return ""
        words = WORDS.get(offset, f"the token {abs(offset)} {'after' if offset > 0 else 'before'}")
        return (
            f" What was hidden is a diagonal: queries give {100 * after:.0f} % of their weight to "
            f"{words}, before {100 * before:.0f} %."
        )

    def diagonal(self) -> tuple[int, float, float]:
        """The neighbour that receives most weight after balance, and its share before and after."""
        plan = self.before if self.after is None else self.after
        if plan.shape[0] != plan.shape[1]:
            return 0, 0.0, 0.0
        offset = max(OFFSETS, key=lambda place: _share(plan, place))
        return offset, _share(self.before, offset), _share(plan, offset)

    def record(self) -> dict[str, Any]:
        """The numbers as JSON."""
        offset, before, after = self.diagonal()
        found: dict[str, Any] = {
            "layer": self.layer, "head": self.head, "sample": self.sample, "token": self.token,
            "queries": self.queries, "lam": self.lam,
            "column_sums_before": self.before.sum(0).tolist(),
            "column_sums_after": None if self.after is None else self.after.sum(0).tolist(),
            "diagonal": {"offset": offset, "before": before, "after": after},
        }  # fmt: skip
        return found


def _loads(plan: Float[Tensor, "n m"], causal: bool) -> Float[Tensor, "m"]:
    load = column_loads(plan, causal)
    # the last keys of a causal plan are seen by few queries
    return load[: max(plan.shape[-1] // 2, 1)] if causal else load


def _share(plan: Float[Tensor, "n n"], offset: int) -> float:
    """The mean weight of a query on the key at this distance.

    >>> _share(torch.eye(3), 0), _share(torch.eye(3), 1)
    (1.0, 0.0)
    """
    entries = torch.diagonal(plan, offset)
    return entries.mean().item() if len(entries) else 0.0
