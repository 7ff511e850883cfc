"""What is solved: scores, and how they are balanced; and the mathematics that backends share."""

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

ALL = slice(None)


class Scores(NamedTuple):
    """Checked tokens whose leading axes are flattened into one, called B, and who may see whom.

    `S = sharpness * query @ key.T + mask`, minus infinity where attention is forbidden.
    """

    query: Float[Tensor, "B n d"]
    key: Float[Tensor, "B m d"]
    # boolean (True = may attend) or a float bias; each of its last two axes may have size one
    mask: Bool[Tensor, "M #n #m"] | Float[Tensor, "M #n #m"] | None
    # which of the M masks each of the B problems uses
    mask_index: Int[Tensor, "B"] | None
    query_mask: Bool[Tensor, "B n"] | None
    key_mask: Bool[Tensor, "B m"] | None
    sharpness: Float[Tensor, "B"]

    @property
    def shape(self) -> tuple[int, int, int]:
        """How many problems, queries and keys there are."""
        return self.query.shape[0], self.query.shape[1], self.key.shape[1]

    @property
    def like(self) -> Tensor:
        """A tensor of the working precision, where all others are."""
        # tokens may be of half precision
        return self.sharpness


class GivenScores(NamedTuple):
    """Scores that exist already, with one leading axis; minus infinity is a forbidden pair."""

    given: Float[Tensor, "B n m"]
    query_mask: Bool[Tensor, "B n"] | None
    key_mask: Bool[Tensor, "B m"] | None

    @property
    def shape(self) -> tuple[int, int, int]:
        """How many problems, queries and keys there are."""
        size, n, m = self.given.shape
        return size, n, m

    @property
    def like(self) -> Tensor:
        """A tensor of the working precision, where all others are."""
        return self.given


@runtime_checkable
class Steps(Protocol):
    """How long to iterate, for whatever has iterations."""

    @property
    def iters(self) -> int: ...  # noqa: D102

    @property
    def tol(self) -> float | None: ...  # noqa: D102


# checkers of shapes ask whether something is one
@runtime_checkable
class Shards(Protocol):
    """The processes that hold the rows of a problem together, and all columns or a shard of them.

    What follows from columns that all have is computed by each of them. A loss is the sum of
    their losses, so a gradient is a part that is summed over them wherever columns become equal.
    """

    @property
    def size(self) -> int:
        """How many processes there are."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum over processes, differentiable."""

    def max(self, x: Tensor) -> Tensor:
        """The largest over processes, without a gradient."""

    def logsumexp(self, x: Tensor) -> Tensor:
        """The log of the sum of exponentials over processes, differentiable."""

    def sum_columns(self, x: Tensor) -> Tensor:
        """What was summed over the columns of this process, over those of all, differentiable."""


class Balance(NamedTuple):
    """How the columns of a plan are balanced, checked, with one leading axis."""

    lam: Float[Tensor, "B"]
    # None: every iteration chooses its own, from the errors that a tol has watched
    omega: Float[Tensor, "B"] | None
    log_mass: Float[Tensor, "B m"]
    # what every query counts in the column step; None is one for all, in logs
    log_row_mass: Float[Tensor, "B n"] | None
    # column potentials before the first iteration; None is zero
    start: Float[Tensor, "B m"] | None
    iters: int
    tol: float | None
    # who has the other rows; None if all are here
    shards: Shards | None = None

    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None, Tensor | None]:
        """All fields but the numbers, in their order."""
        return self.lam, self.omega, self.log_mass, self.log_row_mass, self.start

    def first_column(self) -> Float[Tensor, "B m"]:
        """The column potentials before the first iteration."""
        return torch.zeros_like(self.log_mass) if self.start is None else self.start

    def first_omega(self) -> Float[Tensor, "B"]:
        """The step of the first iteration: the plain one, if all steps are to be chosen."""
        return torch.ones_like(self.lam) if self.omega is None else self.omega

    def weighed(self, row: Float[Tensor, "B r"], rows: slice = ALL) -> Float[Tensor, "B r"]:
        """Row potentials as the column step counts them: `f + log a`."""
        return row if self.log_row_mass is None else row + self.log_row_mass[:, rows]


AnyScores = TypeVar("AnyScores", bound=Scores | GivenScores)


if TYPE_CHECKING:

    class Problem(NamedTuple, Generic[AnyScores]):
        """What every backend of the elastic family solves: scores, and how to balance them."""

        scores: AnyScores
        balance: Balance

else:

    class Problem(NamedTuple):
        """What every backend of the elastic family solves: scores, and how to balance them."""

        scores: Scores | GivenScores
        balance: Balance

        @classmethod
        def __class_getitem__(cls, kind):
            """The same for all kinds of scores: beartype knows no generic named tuples."""
            return cls


def free_columns(scores: AnyScores) -> Problem[AnyScores]:
    """The problem whose plan is the row softmax: the first row step is the last."""
    size, _, m = scores.shape
    lam, log_mass = scores.like.new_zeros(size), scores.like.new_zeros(size, m)
    return Problem(scores, Balance(lam, torch.ones_like(lam), log_mass, None, None, 0, None))


Part = TypeVar("Part", bound=Scores | GivenScores | Balance)


def part_of(fields: Part, some: slice | Tensor) -> Part:
    """Some of the problems; masks stay whole, since many may share one, picked by mask_index."""
    tensors: Any = {
        name: field[some]
        for name, field in fields._asdict().items()
        if isinstance(field, Tensor) and name != "mask"
    }
    part: Any = fields._replace(**tensors)
    return part


class Solution(NamedTuple):
    """What a backend finds: the plan applied to the values, and the potentials that make the plan.

    Its rows sum to one, whatever they count in the column step; `with_row_mass` scales them.
    The potential of a query that may see no key, or of a key that no query may see, is minus
    infinity; all others are finite.
    """

    output: Float[Tensor, "B n e"]
    row: Float[Tensor, "B n"]
    column: Float[Tensor, "B m"]
    error: Float[Tensor, "B"]
    iterations: Int[Tensor, "B"]


def with_row_mass(found: Solution, balance: Balance) -> Solution:
    """The solution whose rows sum to the row masses, if there are any."""
    if balance.log_row_mass is None:
        return found
    mass = balance.log_row_mass
    return found._replace(output=found.output * mass.exp()[..., None], row=found.row + mass)


def dense_scores(scores: Scores | GivenScores) -> Float[Tensor, "B n m"]:
    """The whole score matrix of every problem."""
    if isinstance(scores, GivenScores):
        return forbid(scores.given, None, scores.query_mask, scores.key_mask)
    matrix = (scores.query * scores.sharpness[:, None, None]) @ scores.key.mT
    mask = None if scores.mask is None else scores.mask[scores.mask_index]
    return forbid(matrix, mask, scores.query_mask, scores.key_mask)


def forbid(
    scores: Float[Tensor, "B r m"],
    mask: Tensor | None,
    query_mask: Bool[Tensor, "B r"] | None,
    key_mask: Bool[Tensor, "B m"] | None,
) -> Float[Tensor, "B r m"]:
    """Add the bias and put minus infinity wherever a query may not see a key."""
    if mask is not None:
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        else:
            scores = scores + mask
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, None, :], -torch.inf)
    if query_mask is not None:
        scores = scores.masked_fill(~query_mask[:, :, None], -torch.inf)
    return scores


def row_softmax(scores: Float[Tensor, "*B r m"]) -> Float[Tensor, "*B r m"]:
    """Rows that sum to one, or are zero where nothing is allowed.

    This is `exp(S + f)` without the rounding of f, which matters for large scores.
    """
    if scores.shape[-1] == 0:
        return scores.exp()
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(dead, 0).softmax(-1).masked_fill(dead, 0)


def no_values(scores: Scores | GivenScores) -> Float[Tensor, "B m 0"]:
    """Values without features, where only the potentials are wanted."""
    size, _, m = scores.shape
    return scores.like.new_empty(size, m, 0)


def spread(residual: Float[Tensor, "B m"], live: Bool[Tensor, "B m"] | None) -> Float[Tensor, "B"]:
    """How far the live entries lie apart: zero exactly at a fixed point, up to a constant.

    The residual of the column step is `lam * h - g`. At `lam = 1` it is `-log(colsum / b)`, which
    has both signs, so its spread bounds the largest relative column error.
    """
    if residual.shape[-1] == 0:
        return residual.new_zeros(residual.shape[0])
    highest, lowest = residual, residual
    if live is not None:
        highest = residual.masked_fill(~live, -torch.inf)
        lowest = residual.masked_fill(~live, torch.inf)
    return (highest.amax(-1) - lowest.amin(-1)).clamp_min(0)
