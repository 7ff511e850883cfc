"""Triton kernels of causal balance; `backend` is what is imported when they are chosen.

`attend` is the forward, `replay`, `vectors`, `tokens` and `bias` are the backward, `step` decodes;
`launch`, `differentiate` and `decode` call them. Nothing here imports Triton before it is needed.
"""

import torch
from torch import Tensor

from bistoch.functional.causal.problem import Stream
from bistoch.functional.elastic.triton import WIDEST
from bistoch.functional.kernels.gpu import is_interpreted


def takes(query: Tensor, value: Tensor) -> bool:
    """Whether the kernels know tokens and values of this width and dtype.

    In float64, which GPUs multiply slowly, they only run in the interpreter, for tests.
    """
    known = query.dtype != torch.float64 or is_interpreted()
    return known and max(query.shape[-1], value.shape[-1]) <= WIDEST


def as_they_came(stream: Stream, dtype: torch.dtype) -> Stream:
    """A stream whose tokens and values are of the half precision that they came in, or as it is.

    They are what they were, or zero: nothing is lost.
    """
    if dtype == stream.query.dtype:
        return stream
    query, key, value = (x.to(dtype) for x in (stream.query, stream.key, stream.value))
    return stream._replace(query=query, key=key, value=value)
