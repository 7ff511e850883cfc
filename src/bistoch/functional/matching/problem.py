"""What a matching is solved from, and what is found."""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor


class Sides(NamedTuple):
    """Checked scores between two sides, in units of the temperature, with either form of slack."""

    # minus infinity where a pair is forbidden or padding
    scores: Float[Tensor, "*b n m"]
    # True where real
    rows: Bool[Tensor, "*b n"]
    columns: Bool[Tensor, "*b m"]
    # the score of the dustbins, or None if there are prices
    bin_score: Float[Tensor, "*b"] | None
    # the scores of staying single, minus infinity for what may not; not used beside a bin_score
    row_slack: Float[Tensor, "*b n"]
    column_slack: Float[Tensor, "*b m"]

    def turned(self) -> "Sides":
        """The same, with rows and columns exchanged."""
        return Sides(
            self.scores.mT, self.columns, self.rows, self.bin_score, self.column_slack,
            self.row_slack,
        )  # fmt: skip


class Steps(NamedTuple):
    """How a matching is iterated; the last step is one of rows."""

    iters: int
    tol: float | None
    backend: str
    # whether the first step is one of rows, or a column step before the first iteration
    start_on_rows: bool


class Logs(NamedTuple):
    """The log plan, the logs of what stayed single, and the column error."""

    plan: Float[Tensor, "*b n m"]
    rows: Float[Tensor, "*b n"]
    columns: Float[Tensor, "*b m"]
    error: Float[Tensor, "*b"]

    def turned(self) -> "Logs":
        """The same, with rows and columns exchanged."""
        return Logs(self.plan.mT, self.columns, self.rows, self.error)
