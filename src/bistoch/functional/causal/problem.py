"""The question that every backend of causal balance answers, and the mathematics they share."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

# numbers whose sums are made from one triangle
TOGETHER = 64
# in units of rounding, of which a level of zero was found to be off by 16 after 300 blocks
TIE = 1024


class Stream(NamedTuple):
    """Checked tokens whose leading axes are flattened into one, called B.

    The queries are the last n of the m tokens; what earlier rows did is in the `Account`.
    """

    query: Float[Tensor, "B n d"]
    key: Float[Tensor, "B m d"]
    value: Float[Tensor, "B m e"]
    # boolean (True = may attend) or a float bias; each of its last two axes may have size one
    mask: Bool[Tensor, "M #n #m"] | Float[Tensor, "M #n #m"] | None
    # which of the M masks each of the B problems uses
    mask_index: Int[Tensor, "B"] | None
    # which tokens exist; None for all
    real: Bool[Tensor, "B m"] | None
    sharpness: Float[Tensor, "B"]
    lam: Float[Tensor, "B"]
    block: int
    prior: float


class Account(NamedTuple):
    """What is known of every key: its bias, what it received without it, and its fair share.

    Both begin with the prior. A key that is to come begins at the level of new keys.
    """

    bias: Float[Tensor, "B m"]
    # the log of the mass that the key would have received from the same row factors without a bias
    received: Float[Tensor, "B m"]
    # the mass that uniform causal attention would have given
    wanted: Float[Tensor, "B m"]
    # the log of wanted over received, of all keys of the last block together; never above zero
    level: Float[Tensor, "B"]


class Piece(NamedTuple):
    """Rows that are computed together, and the problems in which they end a block."""

    first: int
    last: int
    ends: bool | Bool[Tensor, "B"]


def open_account(stream: Stream) -> Account:
    """The account of keys that no row has seen yet."""
    wanted = stream.key.new_full(stream.key.shape[:2], stream.prior)
    return Account(
        torch.zeros_like(wanted), wanted.log(), wanted, wanted.new_zeros(wanted.shape[0])
    )


def floor(dtype: torch.dtype) -> float:
    """The log of a mass that is as good as none; finite, so that its gradient is too."""
    return math.log(torch.finfo(dtype).tiny)


def tie(dtype: torch.dtype) -> float:
    """How far below zero a level must be to have a gradient.

    The level of new keys has a kink at zero, where keys that are all alike sit exactly: their rows
    share fairly. There rounding would choose a slope, another one in every backend. The slope at
    the kink is zero, that of keys which are not held back.
    """
    return TIE * torch.finfo(dtype).eps


def cut(length: int, block: int) -> list[Piece]:
    """The blocks of a sequence that is read from its beginning."""
    # torch.jit.trace has tensors for sizes
    length = int(length)
    return [
        Piece(first, min(first + block, length), first + block < length)
        for first in range(0, length, block)
    ]


def allowed_pairs(stream: Stream, first: int, last: int, stop: int) -> Bool[Tensor, "#B r stop"]:
    """Which of the keys before `stop` the rows from `first` to `last` may see."""
    device, earlier = stream.key.device, stream.key.shape[1] - stream.query.shape[1]
    rows = torch.arange(earlier + first, earlier + last, device=device)
    allowed = (torch.arange(stop, device=device) <= rows[:, None])[None]
    mask = _mask_of(stream, first, last, stop)
    if mask is not None:
        allowed = allowed & (mask if mask.dtype == torch.bool else mask > -torch.inf)
    if stream.real is not None:
        allowed = allowed & stream.real[:, None, :stop] & stream.real[:, rows, None]
    return allowed


def scores_of(
    stream: Stream, first: int, last: int, stop: int, allowed: Bool[Tensor, "#B r stop"]
) -> Float[Tensor, "B r stop"]:
    """The scores of some rows, minus infinity where a row may not see a key."""
    query = stream.query[:, first:last] * stream.sharpness[:, None, None]
    scores = query @ stream.key[:, :stop].mT
    mask = _mask_of(stream, first, last, stop)
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask.masked_fill(mask == -torch.inf, 0)
    return scores.masked_fill(~allowed, -torch.inf)


def fair_share(allowed: Bool[Tensor, "#B r m"], dtype: torch.dtype) -> Float[Tensor, "#B m"]:
    """What the rows would give if each shared equally among the keys that it sees."""
    allowed = allowed.to(dtype)
    return (allowed / allowed.sum(-1, keepdim=True).clamp_min(1)).sum(-2)


def fair_share_of(
    stream: Stream, first: int, last: int, allowed: Bool[Tensor, "#B r stop"]
) -> Float[Tensor, "#B stop"]:
    """As `fair_share`, without the pairs if all earlier keys are seen: then it is harmonic."""
    if stream.mask is not None or stream.real is not None:
        return fair_share(allowed, stream.key.dtype)
    stop = allowed.shape[-1]
    start = stop - (last - first)
    # made where it is used: a GPU would wait for a copy from the host
    rows = 1 / torch.arange(start + 1, stop + 1, device=stream.key.device).to(stream.key.dtype)
    # a key of the block is seen from its own row on, an earlier one by all of them
    own = sums_to_the_end(rows)
    return torch.cat([own[:1].expand(start), own])[None]


def sums_to_the_end(numbers: Float[Tensor, "r"]) -> Float[Tensor, "r"]:
    """Of every number and all behind it, as `cumsum` would have them from the end.

    torch lists `cumsum` of floats among what a GPU refuses if results have to be deterministic.

    >>> sums_to_the_end(torch.tensor([1.0, 2.0, 3.0]))
    tensor([6., 5., 3.])
    """
    count = numbers.shape[0]
    if count <= TOGETHER:
        return numbers.expand(count, count).triu().sum(-1)
    # a triangle for all of them would have the square of their number
    parts = pad(numbers, (0, -count % TOGETHER)).unflatten(0, (-1, TOGETHER))
    own = parts[:, None].expand(-1, TOGETHER, -1).triu().sum(-1)
    behind = pad(sums_to_the_end(own[:, 0])[1:], (0, 1))
    return (own + behind[:, None]).flatten()[:count]


def close_block(stream: Stream, account: Account, piece: Piece) -> Account:
    """The column step at the end of a block: `lam` times the log of wanted over received."""
    if piece.ends is False:
        return account
    m = stream.key.shape[1]
    stop = m - stream.query.shape[1] + piece.last
    level = _level_of_new(stream, account, stop)
    if isinstance(piece.ends, Tensor):
        level = torch.where(piece.ends, level, account.level)
    to_come = account.wanted[:, stop:].log() - level[:, None]
    received = torch.cat([account.received[:, :stop], to_come], 1)
    bias = stream.lam[:, None] * (account.wanted.log() - received)
    if isinstance(piece.ends, Tensor):
        bias = torch.where(piece.ends[:, None], bias, account.bias)
    return Account(bias, received, account.wanted, level)


def _level_of_new(stream: Stream, account: Account, stop: int) -> Float[Tensor, "B"]:
    """One column step for all keys of the block that ends at `stop`, as if they were one key."""
    wanted, received = account.wanted[:, :stop], account.received[:, :stop]
    if stream.real is None:
        wanted, received = wanted[:, -stream.block :], received[:, -stream.block :]
    else:
        place = stream.real[:, :stop].cumsum(-1)
        own = stream.real[:, :stop] & (place > place[:, -1:] - stream.block)
        # where there is no token there is no level to find: any key will do
        own = own | ~own.any(-1, keepdim=True)
        wanted, received = wanted * own, received.masked_fill(~own, -torch.inf)
    level = wanted.sum(-1).log() - received.logsumexp(-1)
    # keys that are to come may be held back, but not favoured before a row has looked at them
    return torch.where(level < -tie(level.dtype), level, level.detach().clamp_max(0))


def join(rows: Sequence[Tensor], stream: Stream) -> Float[Tensor, "B n e"]:
    """The rows of all pieces; without a row, nothing."""
    if rows:
        return torch.cat(list(rows), 1)
    return stream.query @ stream.key.mT @ stream.value


def _mask_of(stream: Stream, first: int, last: int, stop: int) -> Tensor | None:
    if stream.mask is None:
        return None
    mask = stream.mask.expand(-1, stream.query.shape[1], stream.key.shape[1])
    return mask[:, first:last, :stop][stream.mask_index]
