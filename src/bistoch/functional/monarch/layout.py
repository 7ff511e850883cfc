"""Which tokens form a block: where every token of a sequence or a grid stands.

Queries come in groups, which share one question to every block, and keys in blocks, which every
group weighs by one distribution. In a sequence a block is a run of tokens, and a group has the
queries at one place of all blocks.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad as pad_axes


class Layout(NamedTuple):
    """Places of tokens, -1 where there is none."""

    members: Int[Tensor, "groups members"]
    keys: Int[Tensor, "blocks width"]
    # the member that a group has in the block of the same number
    own: Int[Tensor, "groups blocks"]


def lay_out(n: int, m: int, block: int, pad: str, device: torch.device) -> Layout:
    """The layout of a sequence in blocks of `block` tokens.

    >>> lay_out(5, 3, 2, "post", torch.device("cpu")).members
    tensor([[ 0,  2,  4],
            [ 1,  3, -1]])
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return _sequence(n, m, block, pad, device)
    return _kept(n, m, block, pad, device)


@lru_cache(maxsize=64)
def _kept(n: int, m: int, block: int, pad: str, device: torch.device) -> Layout:
    # made in inference mode, it could not be used outside of it
    with torch.inference_mode(False):
        return _sequence(n, m, block, pad, device)


def _sequence(n: int, m: int, block: int, pad: str, device: torch.device) -> Layout:
    queries, keys = (_cut(length, block, pad, device) for length in (n, m))
    theirs, ours = queries.shape[0], keys.shape[0]
    own = torch.arange(ours, device=device) - (ours - theirs if pad == "pre" else 0)
    own = torch.where((own >= 0) & (own < theirs), own, -1)
    return Layout(queries.T.contiguous(), keys, own.expand(block, ours).contiguous())


def _cut(length: int, block: int, pad: str, device: torch.device) -> Int[Tensor, "blocks width"]:
    missing = -length % block
    ends = (missing, 0) if pad == "pre" else (0, missing)
    return pad_axes(torch.arange(length, device=device), ends, value=-1).unflatten(0, (-1, block))


def placed(
    tokens: Shaped[Tensor, "B length f"], places: Int[Tensor, "rows columns"], filling: float = 0.0
) -> Shaped[Tensor, "B rows columns f"]:
    """Tokens at their places, and a number where there is none."""
    # the last row is what -1 stands for
    filled = pad_axes(tokens, (0, 0, 0, 1), value=filling)
    return filled[:, places.flatten()].unflatten(1, tuple(places.shape))


def taken(
    blocks: Float[Tensor, "B rows columns f"], places: Int[Tensor, "rows columns"], length: int
) -> Float[Tensor, "B length f"]:
    """Tokens back in their order."""
    # padding, which is lower than all, comes first
    order = places.flatten().argsort()[places.numel() - length :]
    return blocks.flatten(1, 2)[:, order]
