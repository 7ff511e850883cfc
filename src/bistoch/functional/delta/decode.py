"""Decoding after a delta prefill: new rows over the cache, all of it or sink and window alone."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional.delta.inner import inner_operator
from bistoch.functional.inputs import Mask
from bistoch.functional.precision import full_precision

CACHES = ("dense", "sparse")


@full_precision
def delta_step(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    window: int = 256,
    sink: int = 16,
    cache: str = "dense",
    inner: str = "softmax",
    mask: Mask | None = None,
) -> Float[Tensor, "*b n e"]:
    """The next n rows after a prefill by `delta_attention`, over keys that a model has cached.

    A prefill leaves nothing behind but keys and values, so there is no state.

    Args:
        query: the n new tokens.
        key, value: the cache, whose last n tokens are the new ones; or any tokens, with a mask.
        window, sink, inner: as for `delta_attention`.
        cache: "dense", rows see all keys, as its authors decode; "sparse", the first `sink` and the
            last `window` keys, so that the price of a token does not grow.
        mask: True where a row may see a key, or a bias, broadcastable to (*b, n, m). By default a
            row sees all keys up to its own. Windows count the keys that a row may see.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 8, 100, 4).unbind()
    >>> row = bistoch.delta_step(q[..., -1:, :], k, v)
    >>> whole = bistoch.softmax_attention(q, k, v, mask=torch.ones(100, 100).tril().bool())
    >>> bool(torch.allclose(row, whole[..., -1:, :], atol=1e-6))
    True
    """
    operator = "delta_step"
    batch = inputs.check_tokens(operator, query, key, value)
    inputs.check_count(operator, "window", window, least=1)
    inputs.check_count(operator, "sink", sink)
    inputs.check_choice(operator, "cache", cache, CACHES)
    n, m = query.shape[-2], key.shape[-2]
    attend = inner_operator(operator, inner, "attention")
    if mask is not None:
        inputs.check_mask(operator, mask, (*batch, n, m), query.device)
    else:
        inputs.check_cache(operator, m, m - n, n)
    if mask is None and n == 1:
        if cache == "sparse" and m > window + sink:
            key, value = (
                torch.cat([x[..., :sink, :], x[..., -window:, :]], -2) for x in (key, value)
            )
        return attend(query, key, value, mask=None)
    if mask is None:
        places = torch.arange(m, device=query.device)
        mask = places <= places[m - n :, None]
    if cache == "sparse":
        seen = mask if mask.dtype == torch.bool else mask > -torch.inf
        near = _near(seen.expand(*seen.shape[:-1], m), window, sink)
        mask = near if mask.dtype == torch.bool else torch.where(near, mask, -torch.inf)
    return attend(query, key, value, mask=mask)


def _near(allowed: Bool[Tensor, "*#b #n m"], window: int, sink: int) -> Bool[Tensor, "*#b #n m"]:
    """The first and the last of the keys that every row may see."""
    place = allowed.cumsum(-1)
    return allowed & ((place <= sink) | (place > place[..., -1:] - window))
