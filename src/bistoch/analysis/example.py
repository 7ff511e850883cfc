"""Tokens with a known story, for pictures: query i likes key i, and all queries like one key."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def planted_tokens(
    size: int, *, sink: float = 0.0, generator: torch.Generator | None = None
) -> tuple[Float[Tensor, "size d"], Float[Tensor, "size d"]]:
    """Queries near their own keys, and one key that every query likes by `sink` more.

        q k^T / sqrt(d) = (pairs and noise) + sink * [j = size // 3]

    Args:
        size: number of queries and of keys.
        sink: what the sink key gains in every row of the scores; 0 plants none.
        generator: where the noise comes from.

    >>> query, key = planted_tokens(6, sink=3.0, generator=torch.Generator().manual_seed(0))
    >>> (query @ key.T / query.shape[-1] ** 0.5).mean(0).argmax()
    tensor(2)
    """
    if size < 1 or not math.isfinite(sink):
        raise ValueError(
            "planted_tokens: size must be at least 1 and sink must be finite, "
            f"but they are {size} and {sink}"
        )
    features = 16
    noise = torch.randn(2, size, features - 1, generator=generator)
    key = noise[0]
    query = 0.75 * key + 0.6 * noise[1]
    # one feature that is the same in every query: a key that has it is liked by all of them
    common, liked = torch.ones(size, 1), torch.zeros(size, 1)
    liked[size // 3] = sink * math.sqrt(features)
    return torch.cat([query, common], -1), torch.cat([key, liked], -1)
