"""Causal balance as a module: its elasticity may be learned, and it can decode."""

from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import OPERATORS, CausalState, causal_elastic_step
from bistoch.functional.inputs import Mask, Option
from bistoch.nn.operators import LamModule


class CausalElastic(LamModule):
    """Causal attention whose keys are balanced by the past, with an elasticity per head if wanted.

    Args:
        lam: elasticity in [0, 1], by default 1. With `learn="head"` the value to start from, by
            default 0: a new layer is exact causal softmax.
        eps, block, prior, scale, backend: as for `bistoch.causal_elastic_attention`.
        learn: "none", or "head" for a parameter `lam` with one entry per head. It is used clamped
            to [0, 1]; at an end it receives the gradient only if that leads back inside.
        heads: how many heads there are, for `learn="head"`; tokens are then (..., heads, n, d).

    >>> import torch
    >>> operator = CausalElastic(learn="head", heads=8, block=16)
    >>> operator
    causal_elastic(block=16, learn='head', heads=8)
    >>> q, k, v = torch.randn(3, 2, 8, 5, 4).unbind()
    >>> rows, state = operator.step(q[..., :3, :], k, v)
    >>> bool(torch.allclose(rows, operator(q, k, v)[..., :3, :], atol=1e-6))
    True
    """

    def __init__(
        self,
        lam: Option | None = None,
        eps: Option = 1.0,
        block: int = 64,
        prior: float = 0.01,
        scale: float | None = None,
        backend: str = "auto",
        learn: Literal["none", "head"] = "none",
        heads: int | None = None,
    ) -> None:
        super().__init__(
            OPERATORS["causal_elastic"], lam, learn, heads,
            eps=eps, block=block, prior=prior, scale=scale, backend=backend,
        )  # fmt: skip

    def step(
        self,
        query: Float[Tensor, "*#b n d"],
        key: Float[Tensor, "*#b m d"],
        value: Float[Tensor, "*#b m e"],
        state: CausalState | None = None,
        *,
        mask: Mask | None = None,
        query_mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "*b n e"], CausalState]:
        """The next rows and the state after them, as `bistoch.causal_elastic_step`."""
        return causal_elastic_step(
            query, key, value, state, mask=mask, query_mask=query_mask, key_mask=key_mask,
            **self.options(),
        )  # fmt: skip
