"""Causal balance as it is defined, block after block, and the oracle it is measured against.

Nothing is saved or reordered here: this file is the specification of every other backend.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.functional.causal.problem import (
    Account,
    Piece,
    Stream,
    allowed_pairs,
    close_block,
    fair_share,
    floor,
    join,
    scores_of,
)


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
        row = -_log_sum_exp(scores + account.bias[:, None, :], -1)
        plan = (scores + row[..., None] + account.bias[:, None, :]).exp()
        results.append(plan @ stream.value)
        mass = _log_sum_exp(scores + row[..., None], -2).clamp_min(floor(scores.dtype))
        account = Account(
            account.bias,
            torch.logaddexp(account.received, mass),
            account.wanted + fair_share(allowed, scores.dtype),
            account.level,
        )
        account = close_block(stream, account, piece)
    return join(results, stream), account


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
        share = (1 / torch.arange(1, i + 1).to(scores)).flip(0).cumsum(0).flip(0)
        for _ in range(iters):
            row = -torch.logsumexp(prefix + column, -1)
            column = lam * (share.log() - torch.logsumexp(prefix + row[:, None], 0))
        last = (prefix[-1] + column).softmax(-1)
        rows.append(torch.cat([last, last.new_zeros(n - i)]))
    return torch.stack(rows) if rows else scores


def _log_sum_exp(x: Tensor, axis: int) -> Tensor:
    """As torch's, but zero, with zero gradient, where there is nothing to sum."""
    nothing = (x == -torch.inf).all(axis, keepdim=True)
    result = torch.logsumexp(x.masked_fill(nothing, 0), axis, keepdim=True)
    empty = 0.0 if axis == -1 else -torch.inf
    return result.masked_fill(nothing, empty).squeeze(axis)
