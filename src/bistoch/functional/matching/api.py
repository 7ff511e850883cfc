"""Soft matching with slack, in either of its published forms."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._masks import FORBIDDEN, read_bias
from bistoch.functional.elastic.backends import BACKENDS
from bistoch.functional.elastic.scores import over_eps, with_mask
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.matching import bins, slack
from bistoch.functional.matching.problem import Sides, Steps
from bistoch.functional.precision import full_precision


class Match(NamedTuple):
    """A soft matching of rows and columns, and what stayed unmatched.

    `plan` has no bins; `rows` and `columns` are the unmatched shares of every row and column.
    The fields `log_*` are their logarithms, for losses: minus infinity for what is forbidden or
    padding. `pairs` is, for every row, the column with which it is mutually the best, or -1.
    `error` bounds the relative error of the sums of the side that was not scaled last.
    """

    plan: Float[Tensor, "*b n m"]
    rows: Float[Tensor, "*b n"]
    columns: Float[Tensor, "*b m"]
    pairs: Int[Tensor, "*b n"]
    log_plan: Float[Tensor, "*b n m"]
    log_rows: Float[Tensor, "*b n"]
    log_columns: Float[Tensor, "*b m"]
    error: Float[Tensor, "*b"]


@full_precision
def match(
    scores: Float[Tensor, "*b n m"],
    *,
    bin_score: Option | None = None,
    row_price: Option | None = None,
    column_price: Option | None = None,
    eps: Option = 1.0,
    iters: int = 50,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    threshold: float = 0.0,
    end: Literal["rows", "columns"] = "rows",
    backend: str = "auto",
) -> Match:
    """Match rows with columns where some have no partner: sums of `plan` are at most one.

        dustbins: [[S, a], [a, a]] balanced to rows (1, ..., 1, m) and columns (1, ..., 1, n)
        prices:   P = exp(S + f + g),  f_i = -log(e^z_i + sum_j e^(S_ij + g_j)),  g likewise
        S = scores / eps + bias,   a = bin_score / eps,   z = -row_price / eps

    Args:
        scores: score matrices; any leading axes.
        bin_score: the score of staying unmatched, in dustbins with room for all rows and columns;
            a number, or a tensor that broadcasts to the leading axes.
        row_price, column_price: what an unmatched row or column costs: a number, or one for each,
            broadcastable to (*b, n) and (*b, m). A side without a price is matched completely.
        eps: temperature, a number or a tensor that broadcasts to the leading axes.
        iters: iterations, each one row and one column step.
        tol: stop each problem at this error; a warning says when `iters` did not reach it.
        mask: boolean (True = may match) or a float bias added to the scores, as in `balance`.
        query_mask, key_mask: True where a row, a column, is real. Padding changes nothing.
        threshold: the least mass of a pair in `pairs`.
        end: "rows" ends on a further row step: rows and their unmatched shares sum to one.
            "columns" ends on the last column step, as SuperGlue and RPM-Net do.
        backend: as for `balance`.

    >>> import torch, bistoch
    >>> scores = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    >>> found = bistoch.match(scores, bin_score=3.0)
    >>> found.pairs, found.columns.round(decimals=2)
    (tensor([0, 2]), tensor([0.0700, 1.0000, 0.0700]))

    Reference: Sarlin, DeTone, Malisiewicz, Rabinovich, SuperGlue, CVPR 2020; Yew, Lee, RPM-Net,
    CVPR 2020.
    """
    operator, turned = "match", end == "columns"
    inputs.check_floating(operator, "scores", scores, axes="(*b, n, m)", rank=2)
    inputs.check_choice(operator, "end", end, ("rows", "columns"))
    # without an iteration there is no column step to end on
    inputs.check_count(operator, "iters", iters, least=int(turned))
    inputs.check_tol(operator, tol)
    inputs.check_probability(operator, "threshold", threshold)
    sides = _pose(
        operator, scores, bin_score, row_price, column_price, eps, mask, query_mask, key_mask
    )  # fmt: skip
    solve = slack.solve if sides.bin_score is None else bins.solve
    inputs.check_choice(operator, "backend", backend, ("auto", *BACKENDS))
    if turned:
        # the same from the other side, whose first step is half of an iteration
        sides, iters = sides.turned(), iters - 1
    found = solve(operator, sides, Steps(iters, tol, backend, start_on_rows=not turned))
    found = found.turned() if turned else found
    logs = found.plan, found.rows, found.columns
    # rounded last: the exponential of a rounded logarithm would be off by as much as that
    plan, rows, columns = (x.exp().to(scores.dtype) for x in logs)
    log_plan, log_rows, log_columns = (x.to(scores.dtype) for x in logs)
    return Match(
        plan=plan,
        rows=rows,
        columns=columns,
        pairs=_mutual_best(found.plan.detach(), threshold),
        log_plan=log_plan,
        log_rows=log_rows,
        log_columns=log_columns,
        error=found.error,
    )


def _pose(
    operator: str,
    scores: Tensor,
    bin_score: Option | None,
    row_price: Option | None,
    column_price: Option | None,
    eps: Option,
    mask: Mask | None,
    query_mask: Tensor | None,
    key_mask: Tensor | None,
) -> Sides:
    """Check what is matched, and bring it to units of the temperature in working precision."""
    (*batch, n, m), device = scores.shape, scores.device
    inputs.check_eps(operator, eps, batch, device)
    inputs.check_slack(operator, bin_score, row_price, column_price)
    if bin_score is not None:
        inputs.check_logit(operator, "bin_score", bin_score, batch, device)
    real = []
    for name, given, length in (("query_mask", query_mask, n), ("key_mask", key_mask, m)):
        if given is None:
            given = torch.ones(length, dtype=torch.bool, device=device)
        inputs.check_padding(operator, name, given, (*batch, length), device)
        real.append(given.expand(*batch, length))
    if mask is not None:
        inputs.check_mask(operator, mask, scores.shape, device)
    # a bias that all pairs of a row have matters where the row may stay single
    may_be_single = bin_score is not None or row_price is not None
    work = with_mask(over_eps(scores, eps), mask, keep_level=may_be_single)
    single = []
    for name, price, side in (
        ("row_price", row_price, real[0]),
        ("column_price", column_price, real[1]),
    ):
        if price is not None:
            inputs.check_price(operator, name, price, side.shape, device)
            price = _over(-price, eps, work, extra=1).expand(side.shape)
        else:
            price = work.new_full(side.shape, -torch.inf)
        single.append(price.masked_fill(~side, -torch.inf))
    binned = None if bin_score is None else _over(bin_score, eps, work).expand(batch)
    if mask is not None and mask.dtype != torch.bool:
        work = _beside_single(work, mask, single[0] if binned is None else binned[..., None])
    return Sides(
        scores=work.masked_fill(~(real[0][..., None] & real[1][..., None, :]), -torch.inf),
        rows=real[0],
        columns=real[1],
        bin_score=binned,
        row_slack=single[0],
        column_slack=single[1],
    )


def _beside_single(
    scores: Float[Tensor, "*b n m"], mask: Mask, single: Float[Tensor, "*b #n"]
) -> Float[Tensor, "*b n m"]:
    """Scores without the pairs of rows whose biases are all very low, where rows may stay single.

    They are forbidden, as any pair is that is so far below another choice of its row.
    """
    level, single = read_bias(mask, scores.dtype).level, single[..., None]
    far = (level < 0) & (scores.detach() <= single.detach() - FORBIDDEN)
    return scores.masked_fill(far & (single > -torch.inf), -torch.inf)


def _over(value: Option, eps: Option, like: Tensor, *, extra: int = 0) -> Tensor:
    """A number or tensor in units of the temperature, which has so many axes less."""
    # a number at once in this precision, since torch would round it to float32 first; and written
    # by the device, which would wait for a copy from the host
    value = value.to(like.dtype) if isinstance(value, Tensor) else like.new_full((), value)
    if isinstance(eps, Tensor):
        return value / eps.to(like)[(..., *(None,) * extra)]
    return value / eps


def _mutual_best(log_plan: Float[Tensor, "*b n m"], threshold: float) -> Int[Tensor, "*b n"]:
    """For every row the column that it likes best and that likes it best, or -1."""
    n, m = log_plan.shape[-2:]
    if n == 0 or m == 0:
        return log_plan.new_full(log_plan.shape[:-1], -1, dtype=torch.int64)
    best, column = log_plan.max(-1)
    likes_back = log_plan.argmax(-2).gather(-1, column)
    mutual = likes_back == torch.arange(n, device=log_plan.device)
    # a NaN is above nothing
    least = math.log(threshold) if threshold else -math.inf
    return torch.where(mutual & (best > least), column, -1)
