"""Multi-head attention between Gaussian tokens: each projection for means and for variances."""

from typing import Any, cast

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import elu

from bistoch.functional import Gaussian, inputs, wasserstein_moments, wasserstein_plan
from bistoch.functional.inputs import Mask, Option
from bistoch.nn.heads import check_division, merge_heads, project, split_heads

PARTS = ("query", "key", "value", "out")


class GaussianAttention(nn.Module):
    """Multi-head self- or cross-attention between normal distributions, by Wasserstein distance.

        mean = out(P value(mean)),   variance = pos(out'((P * P) pos(value'(variance))))

    Primed projections are those of variances, and pos(x) = elu(x) + 1 makes them positive.

    Args:
        dim: features of the tokens; must be divisible by `heads`.
        heads: number of heads.
        lam: elasticity: 0 is the published softmax, 1 doubly stochastic; a number, or a tensor with
            one entry per head.
        eps, omega, iters, backend: as for `bistoch.wasserstein_attention`.

    >>> import torch, bistoch
    >>> attention = bistoch.nn.GaussianAttention(16, heads=4, lam=0.5)
    >>> tokens = bistoch.Gaussian(torch.randn(2, 5, 16), torch.rand(2, 5, 16))
    >>> found = attention(tokens)
    >>> found.mean.shape, bool((found.variance > 0).all())
    (torch.Size([2, 5, 16]), True)

    Reference: Erick, Rezaei, Mueller, Kainz, Stochastic vision transformers with Wasserstein
    distance-aware attention, 2023.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        lam: Option = 1.0,
        eps: Option = 1.0,
        omega: Option = 1.0,
        iters: int = 10,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_division("GaussianAttention", "dim", dim, "heads", heads)
        self.dim, self.heads = dim, heads
        self.mean = nn.ModuleDict({part: nn.Linear(dim, dim) for part in PARTS})
        self.variance = nn.ModuleDict({part: nn.Linear(dim, dim) for part in PARTS})
        # a tensor moves with the layer, and is learned if it is a parameter
        for name, option in (("lam", lam), ("eps", eps), ("omega", omega)):
            if isinstance(option, Tensor) and not isinstance(option, nn.Parameter):
                option = nn.Buffer(option)
            setattr(self, name, option)
        self.iters, self.backend = iters, backend

    def forward(
        self,
        query: Gaussian,
        key: Gaussian | None = None,
        *,
        mask: Mask | None = None,
        query_mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "..."] | None = None,
    ) -> Gaussian:
        """Attend from the queries to the keys, or within one sequence if there are no keys.

        Args:
            query: tokens (batch, n, dim), their means and variances.
            key: tokens (batch, m, dim), which are also the values; by default the queries.
            mask: boolean (True = may attend) or a float bias, which broadcasts to (batch, heads, n,
                m).
            query_mask, key_mask: (batch, n) and (batch, m), True where the token is real; in
                self-attention one of them stands for both.
        """
        q, k = self._tokens("query", query), self._tokens("key", query if key is None else key)
        v = self._tokens("value", query if key is None else key)
        masks = self._masks(q, k, key is None, mask, query_mask, key_mask)
        found = wasserstein_moments(
            q.mean, k.mean, v.mean, v.variance, query_variance=q.variance,
            key_variance=k.variance, **masks, **self._options(),
        )  # fmt: skip
        mean, variance = (merge_heads(x) for x in found)
        return Gaussian(self.mean["out"](mean), _positive(self.variance["out"](variance)))

    def plan(
        self,
        query: Gaussian,
        key: Gaussian | None = None,
        *,
        mask: Mask | None = None,
        query_mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "... heads n m"]:
        """The plan of every head, (batch, heads, n, m); arguments as for `forward`."""
        q, k = self._tokens("query", query), self._tokens("key", query if key is None else key)
        masks = self._masks(q, k, key is None, mask, query_mask, key_mask)
        return wasserstein_plan(
            q.mean, k.mean, query_variance=q.variance, key_variance=k.variance, **masks,
            **self._options(),
        )  # fmt: skip

    def _tokens(self, part: str, tokens: Gaussian) -> Gaussian:
        """Project means and variances, and cut both into heads."""
        if not isinstance(tokens, tuple) or len(tokens) != 2:
            raise TypeError(
                f"GaussianAttention: {part} must be a bistoch.Gaussian of means and variances, "
                f"but it is a {type(tokens).__name__}; for plain tokens x write "
                "bistoch.Gaussian(x, torch.zeros_like(x))"
            )
        mean, variance = tokens
        mean = project("GaussianAttention", f"{part}.mean", mean, cast(nn.Linear, self.mean[part]))
        of_variance = cast(nn.Linear, self.variance[part])
        variance = project("GaussianAttention", f"{part}.variance", variance, of_variance)
        variance = _positive(variance)
        return Gaussian(split_heads(mean, self.heads), split_heads(variance, self.heads))

    def _masks(self, query, key, same, mask, query_mask, key_mask) -> dict[str, Any]:
        *batch, n, _ = query.mean.shape
        m, device = key.mean.shape[-2], query.mean.device
        layer = "GaussianAttention"
        if mask is not None:
            inputs.check_mask(layer, mask, (*batch, n, m), device)
        # one padding for all heads
        if query_mask is not None:
            inputs.check_padding(layer, "query_mask", query_mask, (*batch[:-1], n), device)
            query_mask = query_mask[..., None, :]
        if key_mask is not None:
            inputs.check_padding(layer, "key_mask", key_mask, (*batch[:-1], m), device)
            key_mask = key_mask[..., None, :]
        if same:
            query_mask = key_mask if query_mask is None else query_mask
            key_mask = query_mask if key_mask is None else key_mask
        return {"mask": mask, "query_mask": query_mask, "key_mask": key_mask}

    def _options(self) -> dict[str, Any]:
        names = ("lam", "eps", "omega", "iters", "backend")
        return {name: getattr(self, name) for name in names}


def _positive(x: Tensor) -> Tensor:
    return elu(x) + 1
