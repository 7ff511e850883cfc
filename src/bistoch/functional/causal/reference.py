"""Causal balance as it is defined, block after block, and the oracle it is measured against.

Nothing is saved or reordered here: this file is the specification of every other backend.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.functional.backends import Backend
from bistoch.functional.causal.problem import (
    Account,
    Piece,
    Stream,
    allowed_pairs,
    close_block,
    cut,
    fair_share,
    floor,
    join,
    open_account,
    scores_of,
)
from bistoch.functional.problem import row_softmax


def run(
    stream: Stream, account: Account, pieces: Sequence[Piece]
) -> tuple[Float[Tensor, "B n e"], Account]:
    """Attend block after block; the result, and the account after the last row.

    With scores S, the bias g of the keys and the rows i of one block:

        f_i  = -LSE_j (S_ij + g_j),   P_ij = exp(S_ij + f_i + g_j)           the rows, exact
        k_j += sum_i exp(S_ij + f_i),   H_j += sum_i (1 / keys that i sees)   what they leave behind
        g_j  = lam * log(H_j / k_j)                                          when the block ends

    The last line is the column step of the elastic operator, over all rows up to here, with the row
    factors that they had when they were computed. A key begins with H = prior and k = prior / r,
    where r = min(1, sum H / sum k) over the keys of the last block, and 1 in the first.
    """
    results, m = [], stream.key.shape[1]
    for piece in pieces:
        first, last, _ = piece
        allowed = allowed_pairs(stream, first, last, m)
        scores = scores_of(stream, first, last, m, allowed)
        biased = scores + account.bias[:, None, :]
        # not exp(S + f + g), whose rows are as far from one as f is rounded
        results.append(row_softmax(biased) @ stream.value)
        # exp(S + f) is the plan without the bias
        mass = (_log_sum_exp(_log_softmax(biased)) - account.bias).clamp_min(floor(scores.dtype))
        account = Account(
            account.bias,
            torch.logaddexp(account.received, mass),
            account.wanted + fair_share(allowed, scores.dtype),
            account.level,
        )
        account = close_block(stream, account, piece)
    return join(results, stream), account


def attend(stream: Stream) -> Float[Tensor, "B n e"]:
    """The rows of a whole sequence."""
    return run(stream, open_account(stream), cut(stream.query.shape[1], stream.block))[0]


BACKEND = Backend("reference", "", attend)


def prefix_plan(
    scores: Float[Tensor, "n n"], lam: float = 1.0, iters: int = 30
) -> Float[Tensor, "n n"]:
    """The oracle: row i is the last row of the elastic plan of the first i tokens alone.

        P[i] = last row of balance(S[:i, :i]) to columns of sum_r>=j 1/r, r = 1..i

    No row knows a later one, and nothing better can be asked of the past; it costs n^3.

    >>> import torch
    >>> plan = prefix_plan(torch.randn(7, 7, generator=torch.Generator().manual_seed(0)))
    >>> bool(torch.allclose(plan.diagonal(), 1 / torch.arange(1.0, 8.0), atol=1e-3))
    True
    """
    n = len(scores)
    scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    rows = []
    for i in range(1, n + 1):
        prefix, column = scores[:i, :i], scores.new_zeros(i)
        share = (1 / torch.arange(1, i + 1, device=scores.device).to(scores.dtype)).flip(0)
        share = share.cumsum(0).flip(0)
        for _ in range(iters):
            row = -torch.logsumexp(prefix + column, -1)
            column = lam * (share.log() - torch.logsumexp(prefix + row[:, None], 0))
        last = (prefix[-1] + column).softmax(-1)
        rows.append(torch.cat([last, last.new_zeros(n - i)]))
    return torch.stack(rows) if rows else scores


def _log_softmax(x: Float[Tensor, "B r m"]) -> Float[Tensor, "B r m"]:
    """The log of rows that sum to one; minus infinity, with zero gradient, where a row is empty."""
    nothing = (x == -torch.inf).all(-1, keepdim=True)
    return x.masked_fill(nothing, 0).log_softmax(-1).masked_fill(nothing, -torch.inf)


def _log_sum_exp(x: Float[Tensor, "B r m"]) -> Float[Tensor, "B m"]:
    """The log of what rows give to a key; minus infinity, with zero gradient, if it is nothing."""
    nothing = (x == -torch.inf).all(-2, keepdim=True)
    result = torch.logsumexp(x.masked_fill(nothing, 0), -2, keepdim=True)
    return result.masked_fill(nothing, -torch.inf).squeeze(-2)
