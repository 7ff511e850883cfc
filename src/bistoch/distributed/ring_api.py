"""A call whose keys are passed round: pose the problem of a rank, solve it, differentiate it."""

import torch
from torch import Tensor

from bistoch.distributed.collectives import RankGroup
from bistoch.distributed.ring import Ring
from bistoch.distributed.ring_gradient import Replay
from bistoch.distributed.ring_solve import Record, Round, Totals
from bistoch.functional import inputs
from bistoch.functional._nonfinite import largest_score, show
from bistoch.functional.elastic.api import warn_if_far
from bistoch.functional.elastic.operator import Inputs, Upstream, inputs_of, only_once, room
from bistoch.functional.pose import (
    BalanceOptions,
    ScoreOptions,
    check_balance,
    flatten,
    pose_balance,
    pose_scores,
)
from bistoch.functional.precision import no_autocast
from bistoch.functional.problem import Problem, Scores, Solution, with_row_mass


def solve_ring(
    ranks: RankGroup,
    sizes: list[int],
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    pairs: ScoreOptions,
    options: BalanceOptions,
) -> Solution:
    """The solution of this rank: its rows, its columns, and the error of all.

    Options were checked, and agreed upon, and those that all ranks have have whole gradients.
    """
    ranks = ranks._replace(has_own_columns=True)
    operator, options = ranks.operator, options._replace(shards=ranks)
    batch = inputs.check_tokens(operator, query, key)
    n, m = query.shape[-2], key.shape[-2]
    with no_autocast(query.device):
        row_mass, counts = check_balance(operator, batch, n, m, query, options)
        scores = pose_scores(
            operator, batch, query, key, pairs, counts=counts, shards=ranks, columns=sum(sizes)
        )
        balance = pose_balance(operator, batch, scores, options, row_mass)
        values = scores.key[..., :0] if value is None else flatten(value, batch)
        scores, values, broken = _cleaned(ranks, scores, values)
        ring, fields = Ring(ranks, sizes), inputs_of(Problem(scores, balance), values)
        # an error that nobody asked for costs one more round
        wants_error = value is None or options.tol is not None
        found = Solution(*_Solve.apply(ring, options.iters, options.tol, wants_error, *fields))
        if broken is not None:
            found = _shown(found, broken)
        warn_if_far(operator, balance, found.error)
        return with_row_mass(found, balance)


def _cleaned(
    ranks: RankGroup, scores: Scores, value: Tensor
) -> tuple[Scores, Tensor, Tensor | None]:
    """Without what is not finite, and the heads that have it on any rank; None if none has.

    A token that is padding breaks nothing. One that a mask hides does: no rank has both its row and
    its key, and a mask of pairs would have to go round to know.
    """
    real = (scores.query_mask, scores.key_mask, scores.key_mask)
    tokens = (scores.query, scores.key, value)
    bad = torch.zeros_like(scores.sharpness, dtype=torch.bool)
    longest = []
    for x, mask in zip(tokens, real, strict=True):
        wrong = ~x.detach().isfinite().all(-1)
        bad = bad | (wrong if mask is None else wrong & mask).any(-1)
        lengths = x.detach().nan_to_num(0.0, 0.0, 0.0).norm(dim=-1)
        longest.append(lengths.amax(-1) if lengths.shape[1] else lengths.sum(-1))
    mask = scores.mask
    has_bias = mask is not None and mask.dtype != torch.bool
    if mask is not None and has_bias:
        bad = bad | ~(mask.detach() < torch.inf).flatten(1).all(-1)[scores.mask_index]
    told = ranks.max(torch.stack([bad.to(value.dtype), *longest[:2]]))
    # no score is larger than the longest query times the longest key
    largest = told[1] * told[2] * scores.sharpness.detach().abs().clamp_min(1)
    broken = (told[0] > 0) | ~(largest <= largest_score(value.dtype))
    if not bool(broken.any()):
        return scores, value, None
    query, key, value = (
        torch.where(broken[:, None, None], 0, x).nan_to_num(0.0, 0.0, 0.0) for x in tokens
    )
    if mask is not None and has_bias:
        mask = mask.nan_to_num(0.0, 0.0, -torch.inf)
    return scores._replace(query=query, key=key, mask=mask), value, broken


def _shown(found: Solution, broken: Tensor) -> Solution:
    """NaN in the heads that are broken, but where a row sees no key."""
    sees = found.row > -torch.inf
    rows = broken[:, None] & sees
    factor = torch.where(broken[:, None] & (found.column > -torch.inf), torch.nan, 1.0)
    return found._replace(
        output=show(found.output, rows),
        row=show(found.row[..., None], rows)[..., 0],
        column=found.column * factor.to(found.column.dtype),
        error=torch.where(broken, torch.nan, found.error),
    )


class _Solve(torch.autograd.Function):
    """Forward and backward of a rank; what is saved is linear in the size of its shard."""

    @staticmethod
    def forward(ctx, ring, iters, tol, wants_error, *fields):
        given = Inputs._make(fields)
        problem = given.problem(iters, tol)
        found, last, records = Round(ring, *problem).forward(given.value, wants_error)
        kept = [x for record in records for x in (*record.rows, *record.columns, *record[2:])]
        ctx.ring, ctx.steps, ctx.count = ring, len(records), len(fields)
        ctx.save_for_backward(*fields, *found, *last, *kept)
        ctx.mark_non_differentiable(found.error, found.iterations)
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    @only_once("elastic_ring")
    def backward(ctx, output_grad, row_grad, column_grad, *_):
        saved = list(ctx.saved_tensors)
        given, rest = Inputs._make(saved[: ctx.count]), saved[ctx.count :]
        solution, last, kept = Solution(*rest[:5]), Totals(*rest[5:7]), rest[7:]
        records = []
        for t in range(ctx.steps):
            rows, totals, more, less, column, omega = kept[6 * t : 6 * t + 6]
            records.append(Record(Totals(rows, totals), Totals(more, less), column, omega))
        needed = Inputs._make(ctx.needs_input_grad[4:])
        grads = room(given, bool(needed.mask))
        if output_grad is None:
            output_grad = torch.zeros_like(solution.output)
        upstream = Upstream(output_grad, row_grad, column_grad)
        problem = Round(ctx.ring, *given.problem(ctx.steps, None))
        Replay(problem, given.value, solution, last, records, upstream).backward(grads)
        found = {**grads._asdict(), "mask": grads.bias}
        by_input = (found[name] if need else None for name, need in needed._asdict().items())
        return None, None, None, None, *by_input
