"""Multi-head attention around any operator: project, split into heads, attend, merge, project."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from bistoch.functional import inputs
from bistoch.functional.inputs import Mask
from bistoch.nn.build import build_operator
from bistoch.nn.heads import check_division, merge_heads, project, split_heads
from bistoch.nn.over_ranks import check_over_ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Attention(nn.Module):
    """Multi-head self- or cross-attention with the operator of your choice.

        out(merge(operator(query(x), key(y), value(z))))

    Args:
        dim: features of the queries and of the result; must be divisible by `heads`.
        heads: number of heads.
        operator: a text such as "softmax", "elastic(lam=0.5, iters=5)" or "elastic(learn='head')"
            with a name of `bistoch.OPERATORS`, or a module such as `bistoch.nn.Elastic(lam=0.5)`.
        key_dim: features of the keys, by default `dim`.
        value_dim: features of the values, by default `key_dim`.
        qkv_bias: whether the projections of query, key and value have a bias.
        out_bias: whether the projection of the result has a bias.
        dropout: probability of dropping an entry of the result. The plan is never thinned out,
            which would undo its row and column sums.
        batch_first: whether tokens are (batch, length, features), or (length, batch, features).
        mesh: ranks that hold the sequence together, a device mesh with one axis. Each passes its
            tokens, with their masks and masses, and a `mask` of its rows and the columns of all.
            Weights are the same on all ranks, their gradients add up over ranks to those of one
            process. For softmax, sinkhorn, elastic and causal_elastic.

    >>> import torch, bistoch
    >>> attention = bistoch.nn.Attention(64, heads=8, operator="elastic(lam=0.5, iters=5)")
    >>> x, memory = torch.randn(2, 11, 64), torch.randn(2, 7, 64)
    >>> attention(x).shape, attention(x, memory).shape, attention.plan(x, memory).shape
    (torch.Size([2, 11, 64]), torch.Size([2, 11, 64]), torch.Size([2, 8, 11, 7]))
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        operator: str | nn.Module = "softmax",
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        qkv_bias: bool = True,
        out_bias: bool = True,
        dropout: float = 0.0,
        batch_first: bool = True,
        mesh: "DeviceMesh | None" = None,
    ) -> None:
        super().__init__()
        check_division("Attention", "dim", dim, "heads", heads)
        key_dim = dim if key_dim is None else key_dim
        value_dim = key_dim if value_dim is None else value_dim
        for name, features in (("key_dim", key_dim), ("value_dim", value_dim)):
            inputs.check_count("Attention", name, features, least=1)
        flags = {"qkv_bias": qkv_bias, "out_bias": out_bias, "batch_first": batch_first}
        for name, flag in flags.items():
            inputs.check_flag("Attention", name, flag)
        inputs.check_probability("Attention", "dropout", dropout)
        self.heads = heads
        self.batch_first = batch_first
        self.query = nn.Linear(dim, dim, bias=qkv_bias)
        self.key = nn.Linear(key_dim, dim, bias=qkv_bias)
        self.value = nn.Linear(value_dim, dim, bias=qkv_bias)
        self.operator = build_operator(operator, heads, dim // heads)
        if mesh is not None:
            row = getattr(self.operator, "row", None)
            check_over_ranks("Attention", type(self.operator).__name__ if row is None else row.name)
            self.operator.mesh = mesh
        self.out = nn.Linear(dim, dim, bias=out_bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        query: Float[Tensor, "... n dim"],
        key: Float[Tensor, "... m key_dim"] | None = None,
        value: Float[Tensor, "... m value_dim"] | None = None,
        *,
        mask: Mask | None = None,
        query_mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "..."] | None = None,
        column_mass: Float[Tensor, "..."] | None = None,
        row_mass: Float[Tensor, "..."] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "... n dim"]:
        """Attend from the queries to the keys, or within one sequence if there are no keys.

        Args:
            query: tokens, batched or a single sequence (length, features).
            key: by default the queries: self-attention.
            value: by default the keys.
            mask: boolean (True = may attend) or a float bias added to the scores, broadcastable to
                (batch, heads, n, m). For batched tokens not with three axes: the first of them
                could be the batch as well as the heads.
            query_mask, key_mask: (batch, n) and (batch, m) for either `batch_first`, True where the
                token is real. A padded query puts no mass on any key; its result is the bias of the
                output projection. In self-attention both speak of the same tokens, so one given
                alone stands for both.
            column_mass, row_mass: (batch, m) and (batch, n), the same for all heads; what the
                operator makes of them is its own affair, and it refuses what it does not take.
            generator: for an operator that draws random numbers.
        """
        same = key is None or key is query
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self._queries(query), self._keys(key), self._split("value", value, self.value)
        inputs.check_tokens("Attention", q, k, v)
        masks = self._masks(q, k, same, mask, query_mask, key_mask)
        extra = _for_heads(column_mass, row_mass, generator)
        heads = self.operator(q, k, v, **masks, **extra)
        result = self.dropout(self.out(merge_heads(heads)))
        return result if self.batch_first or result.ndim == 2 else result.transpose(0, 1)

    def plan(
        self,
        query: Float[Tensor, "... n dim"],
        key: Float[Tensor, "... m key_dim"] | None = None,
        *,
        mask: Mask | None = None,
        query_mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "..."] | None = None,
        column_mass: Float[Tensor, "..."] | None = None,
        row_mass: Float[Tensor, "..."] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "... heads queries keys"]:
        """The plan of every head, (batch, heads, n, m); arguments as for `forward`."""
        same = key is None or key is query
        q, k = self._queries(query), self._keys(query if key is None else key)
        masks = self._masks(q, k, same, mask, query_mask, key_mask)
        return self.operator.plan(q, k, **masks, **_for_heads(column_mass, row_mass, generator))

    def _queries(self, tokens: Tensor) -> Float[Tensor, "... heads n size"]:
        return self._split("query", tokens, self.query)

    def _keys(self, tokens: Tensor) -> Float[Tensor, "... heads m size"]:
        return self._split("key", tokens, self.key)

    def _split(
        self, name: str, tokens: Tensor, projection: nn.Linear
    ) -> Float[Tensor, "... heads length size"]:
        tokens = project("Attention", name, tokens, projection)
        if tokens.ndim == 3 and not self.batch_first:
            tokens = tokens.transpose(0, 1)
        return split_heads(tokens, self.heads)

    def _masks(
        self,
        query: Float[Tensor, "... heads n size"],
        key: Float[Tensor, "... heads m size"],
        same_tokens: bool,
        mask: Tensor | None,
        query_mask: Tensor | None,
        key_mask: Tensor | None,
    ) -> dict[str, Any]:
        """Check the masks of a layer and give them an axis for the heads."""
        batch = inputs.check_tokens("Attention", query, key)[:-1]
        if isinstance(mask, Tensor) and mask.ndim == 3 and len(batch) == 1:
            raise ValueError(
                "Attention: mask must have 2 axes (n, m) or 4 axes (batch, heads, n, m), but its "
                f"shape is {tuple(mask.shape)}; write mask[:, None] if it has one matrix per "
                "sequence, mask[None] if it has one per head"
            )
        n, m, device = query.shape[-2], key.shape[-2], query.device
        # how many keys all ranks have together is known to the operator
        if mask is not None and getattr(self.operator, "mesh", None) is None:
            inputs.check_mask("Attention", mask, (*batch, self.heads, n, m), device)
        if query_mask is not None:
            inputs.check_padding("Attention", "query_mask", query_mask, (*batch, n), device)
            query_mask = query_mask.unsqueeze(-2)
        if key_mask is not None:
            inputs.check_padding("Attention", "key_mask", key_mask, (*batch, m), device)
            key_mask = key_mask.unsqueeze(-2)
        if same_tokens:
            query_mask = key_mask if query_mask is None else query_mask
            key_mask = query_mask if key_mask is None else key_mask
        return {"mask": mask, "query_mask": query_mask, "key_mask": key_mask}


def _for_heads(
    column_mass: Tensor | None, row_mass: Tensor | None, generator: torch.Generator | None
) -> dict[str, Any]:
    """The arguments of a call beside tokens and masks, with an axis for the heads."""
    given: dict[str, Any] = {}
    for name, mass in (("column_mass", column_mass), ("row_mass", row_mass)):
        if mass is not None:
            inputs.check_floating("Attention", name, mass, axes="(batch, length)", rank=1)
            given[name] = mass.unsqueeze(-2)
    return given if generator is None else given | {"generator": generator}
