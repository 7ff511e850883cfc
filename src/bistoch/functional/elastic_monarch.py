"""Elastic Monarch attention: columns pulled to equal mass without any n x m matrix."""

from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._export import export_whole
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.monarch.api import attend, dense
from bistoch.functional.monarch.problem import Form
from bistoch.functional.pose import BalanceOptions, ScoreOptions


@export_whole
def elastic_monarch_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option = 1.0,
    iters: int = 10,
    updates: int = 2,
    block: int | tuple[int, ...] | None = None,
    pad: str = "post",
    grid: tuple[int, ...] | None = None,
    tiles: tuple[int, int] = (1, 1),
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n e"]:
    """Attend with a Monarch matrix whose columns are pulled towards equal mass.

        P = softmax_row(M + g),   M = the scores in the Monarch form that `monarch_attention` finds
        g <- (1 - omega) g + omega lam (log b - LSE_i(M + f)),   f = -LSE_j(M + g)

    A bias per key keeps the Monarch form, and column sums of it are two thin sums: an iteration
    takes m (block + n/block) steps, and nothing of size n x m exists.

    Args:
        query, key, value, eps, scale, column_mass: as for `elastic_attention`.
        lam: elasticity in [0, 1]: 0 is `monarch_attention`, 1 is doubly stochastic in the limit.
        omega: step of the column update in (0, 2); 1 is plain.
        iters: iterations, each one row and one column step.
        updates: updates of the Monarch form, the `iters` of `monarch_attention`. They come first
            and depend on the column steps; then the form stays, so that the columns can converge.
        block, pad, grid, tiles, mask, query_mask, key_mask, backend: as for `monarch_attention`.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 8, 100, 4).unbind()
    >>> bistoch.elastic_monarch_attention(q, k, v, lam=0.5).shape
    torch.Size([2, 8, 100, 4])
    """
    operator = "elastic_monarch_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    inputs.check_count(operator, "updates", updates, least=1)
    inputs.check_omega(operator, omega, batch, query.device)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    balance = BalanceOptions(lam, omega, iters, None, column_mass)
    form = Form(updates, block, pad, grid, tiles, backend)
    return attend(operator, batch, query, key, value, pairs, balance, form)


@export_whole
def elastic_monarch_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option = 1.0,
    iters: int = 10,
    updates: int = 2,
    block: int | tuple[int, ...] | None = None,
    pad: str = "post",
    grid: tuple[int, ...] | None = None,
    tiles: tuple[int, int] = (1, 1),
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """The plan of `elastic_monarch_attention` as a dense matrix, for study.

    Arguments are those of `elastic_monarch_attention`.

    >>> import torch, bistoch
    >>> q, k = torch.randn(2, 25, 4).unbind()
    >>> plan = bistoch.elastic_monarch_plan(q, k, iters=100)
    >>> [bool(torch.allclose(plan.sum(axis), torch.ones(25), atol=1e-4)) for axis in (-1, -2)]
    [True, True]
    """
    operator = "elastic_monarch_plan"
    batch = inputs.check_tokens(operator, query, key)
    inputs.check_count(operator, "updates", updates, least=1)
    inputs.check_omega(operator, omega, batch, query.device)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    balance = BalanceOptions(lam, omega, iters, None, column_mass)
    form = Form(updates, block, pad, grid, tiles, backend)
    return dense(operator, batch, query, key, pairs, balance, form)
