"""Causal balance with memory linear in the length, forward and backward, on any device.

Only the rows of one block exist at a time. In the backward every block is computed again; what
autograd keeps of it is the account of the keys before it, and of long sequences only some of these.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.functional._export import is_open
from bistoch.functional._recompute import checkpointed
from bistoch.functional.backends import Backend
from bistoch.functional.causal.problem import (
    Account,
    Piece,
    Stream,
    allowed_pairs,
    close_block,
    cut,
    fair_share_of,
    floor,
    join,
    open_account,
    scores_of,
)
from bistoch.functional.problem import row_softmax

# accounts that are kept for the backward, at most; what lies between them is computed again
KEPT = 32
# scores that exist at a time, for all problems together: 16 MiB in float32
BUDGET = 1 << 22


def run(
    stream: Stream, account: Account, pieces: Sequence[Piece]
) -> tuple[Float[Tensor, "B n e"], Account]:
    """As `reference.run`, some problems at a time."""
    size, m = stream.key.shape[:2]
    largest = max([1, *(piece.last - piece.first for piece in pieces)])
    together = max(1, BUDGET // (largest * max(m, 1)))
    if is_open(size) or together >= size:
        return _run_together(stream, account, pieces)
    parts = []
    for first in range(0, size, together):
        some = slice(first, first + together)
        own = [
            piece._replace(ends=piece.ends[some]) if isinstance(piece.ends, Tensor) else piece
            for piece in pieces
        ]
        parts.append(_run_together(_of(stream, some), Account(*(x[some] for x in account)), own))
    results, accounts = zip(*parts, strict=True)
    columns = [torch.cat(column) for column in zip(*accounts, strict=True)]
    return torch.cat(results), Account(*columns)


def attend(stream: Stream) -> Float[Tensor, "B n e"]:
    """The rows of a whole sequence."""
    return run(stream, open_account(stream), cut(stream.query.shape[1], stream.block))[0]


BACKEND = Backend("streaming", "", attend)


def _run_together(stream: Stream, account: Account, pieces: Sequence[Piece]):
    step = math.ceil(len(pieces) / KEPT)
    if step <= 1:
        return _run_pieces(stream, account, pieces)
    results = []
    for first in range(0, len(pieces), step):
        some = pieces[first : first + step]

        def part(*columns: Tensor, some: Sequence[Piece] = some):
            result, after = _run_pieces(stream, Account(*columns), some)
            return result, *after

        # always worth forgetting: a part has many blocks
        result, *columns = checkpointed(1 << 30, part, *account)
        account = Account(*columns)
        results.append(result)
    return join(results, stream), account


def _run_pieces(stream: Stream, account: Account, pieces: Sequence[Piece]):
    results = []
    earlier = stream.key.shape[1] - stream.query.shape[1]
    for piece in pieces:
        stop = earlier + piece.last
        numbers = stream.key.shape[0] * (piece.last - piece.first) * stop
        result, mass, share = checkpointed(numbers, _rows, stream, account.bias, piece, stop)
        account = Account(
            account.bias,
            _first(torch.logaddexp(account.received[:, :stop], mass), account.received),
            _first(account.wanted[:, :stop] + share, account.wanted),
            account.level,
        )
        account = close_block(stream, account, piece)
        results.append(result)
    return join(results, stream), account


def _rows(stream: Stream, bias: Float[Tensor, "B m"], piece: Piece, stop: int):
    """The result of the rows of one piece, the log mass that they leave, and their fair share."""
    bias = bias[:, :stop]
    allowed = allowed_pairs(stream, piece.first, piece.last, stop)
    if stream.mask is None and stream.real is None:
        # every row sees itself, so none is empty; and with nothing to add, one product does it all
        query = stream.query[:, piece.first : piece.last] * stream.sharpness[:, None, None]
        scores = torch.baddbmm(bias[:, None, :], query, stream.key[:, :stop].mT)
        plan = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    else:
        scores = scores_of(stream, piece.first, piece.last, stop, allowed)
        plan = row_softmax(scores + bias[:, None, :])
    sums, least = plan.sum(-2), torch.finfo(plan.dtype).tiny
    # the mass without the bias; where it is lost to underflow, it is lost in what was there before
    mass = torch.where(sums > least, sums.clamp_min(least).log() - bias, floor(plan.dtype))
    share = fair_share_of(stream, piece.first, piece.last, allowed)
    return plan @ stream.value[:, :stop], mass, share


def _first(changed: Float[Tensor, "B stop"], old: Float[Tensor, "B m"]) -> Float[Tensor, "B m"]:
    """The account with its first entries changed."""
    return torch.cat([changed, old[:, changed.shape[1] :]], 1)


def _of(stream: Stream, some: slice) -> Stream:
    """Some problems of a stream; masks stay shared."""
    index, real = stream.mask_index, stream.real
    return stream._replace(
        query=stream.query[some],
        key=stream.key[some],
        value=stream.value[some],
        mask_index=None if index is None else index[some],
        real=None if real is None else real[some],
        sharpness=stream.sharpness[some],
        lam=stream.lam[some],
    )
