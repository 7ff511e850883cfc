"""Causal balance as a module: its elasticity may be learned, and it can decode."""

from typing import Any, Literal

from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import OPERATORS, CausalState, causal_elastic_step
from bistoch.functional.causal import growing
from bistoch.functional.causal.growing import GrowingState, StepOptions
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.precision import working_dtype
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

    def step_in_place(
        self,
        query: Float[Tensor, "b h n d"],
        key: Float[Tensor, "b kv m d"],
        value: Float[Tensor, "b kv m e"],
        state: CausalState | GrowingState | None,
        *,
        scale: float | None,
        key_mask: Bool[Tensor, "#b 1 m"] | None,
    ) -> tuple[Float[Tensor, "b h n e"], GrowingState] | None:
        """As `step`, without a copy: the state is changed, and query heads may share keys.

        It has kernels for a whole sequence without padding and for one new token, in inference on a
        CPU. None, with nothing changed, for all else, which `step` does.

        >>> import torch
        >>> operator, (q, k, v) = CausalElastic(block=4), torch.randn(3, 1, 2, 9, 4).unbind()
        >>> _, state = operator.step_in_place(q[..., :8, :], k[..., :8, :], v[..., :8, :], None,
        ...                                   scale=None, key_mask=None)
        >>> row, state = operator.step_in_place(q[..., 8:, :], k, v, state,
        ...                                     scale=None, key_mask=None)
        >>> bool(torch.allclose(row, operator(q, k, v)[..., 8:, :], atol=1e-5)), state.length
        (True, 9)
        """
        options = self.options()
        lam, eps = options["lam"], options["eps"]
        n = query.shape[-2]
        tensors = (query, key, value, key_mask, *(x for x in (lam, eps) if isinstance(x, Tensor)))
        able = options["backend"] in ("auto", "cpu") and query.dtype == working_dtype(query.dtype)
        if not able or not growing.can_grow(*tensors):
            return None
        if not growing.belong_together(query, key, value):
            return None
        known = (key_mask is None and n > 0) if state is None else n == 1
        if not known:
            return None
        rule = self._rule(query, scale, options)
        if state is None:
            return growing.begin(query, key[..., :n, :], value[..., :n, :], rule)
        if isinstance(state, CausalState):
            # a value that padding hides is multiplied by zero, which does not hide a NaN
            hidden = value[..., : state.length, :]
            if not bool(state.level.isfinite().all()) or not bool(hidden.isfinite().all()):
                return None
            state = GrowingState.of(state, key)
        row = growing.append(query, key, value, state, rule, key_mask)
        return None if row is None else (row, state)

    def _rule(self, query: Tensor, scale: float | None, options: dict[str, Any]) -> StepOptions:
        """The rule of a step; that of the last one, if nothing is learned and all is as it was."""
        values = [options[name] for name in ("lam", "eps", "block", "prior")]
        if any(isinstance(value, Tensor) for value in values):
            return growing.step_options(query, scale, *values)
        asked = (*query.shape[:-2], query.shape[-1], query.dtype, scale, *values)
        last = self.__dict__.get("_last_rule")
        if last is None or last[0] != asked:
            last = asked, growing.step_options(query, scale, *values)
            self.__dict__["_last_rule"] = last
        return last[1]
