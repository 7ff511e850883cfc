"""Monarch attention: a plan of two thin stochastic factors, in n sqrt(n) instead of n squared."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._export import export_whole, is_open
from bistoch.functional._nonfinite import show
from bistoch.functional.backends import HAS_NUMBA, assume_constant_result, choose_backend
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.monarch import reference
from bistoch.functional.monarch.problem import Form, Monarch, pose_monarch
from bistoch.functional.pose import BalanceOptions, ScoreOptions

_MODULES = {
    "reference": "bistoch.functional.monarch.reference",
    "cpu": "bistoch.functional.monarch.operator",
}
BACKENDS = tuple(_MODULES)

# numbers of the two factors, over the whole batch, below which compiling takes longer than it saves
SMALL = 1 << 11


@export_whole
def monarch_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    eps: Option = 1.0,
    iters: int = 2,
    block: int | tuple[int, ...] | None = None,
    pad: str = "post",
    grid: tuple[int, ...] | None = None,
    tiles: tuple[int, int] = (1, 1),
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n e"]:
    """Attend with the best Monarch matrix that `iters` alternating updates find.

        maximise <S, P> + H(P)  over  P[(l, p), (k, i)] = between[p, k, l] within[k, p, i]

    Nothing of size n x m exists, forward or backward: time and memory grow as m (block + n/block).

    Args:
        query, key, value, eps, scale: as for `elastic_attention`.
        iters: alternating updates of both factors; most is gained by the first two.
        block: tokens per block, by default ceil(sqrt(min(n, m))). 1 is softmax, and so is one block
            of all tokens. On a grid one size per axis: a block is a rectangle; by default the whole
            of some axes, such as a row of a picture.
        pad: where blocks are filled up if `block` does not divide the length: "post", after the
            last token, or "pre", before the first, so that the first block is the short one. Tokens
            that are not on the grid come first with "pre", as a class token does, or last.
        grid: (rows, columns) or (frames, rows, columns) of tokens that lie on a grid, the last axis
            running fastest. All others, at most one block of them, form a block of their own.
        tiles: into how many parts the queries of a place and the keys of a block are cut, each
            with a factor of its own: more work, and nearer to softmax.
        mask: a boolean mask or a bias that is the same for all queries, (..., 1, m).
        query_mask, key_mask: True where the token is real.
        backend: "reference" is made of torch's operations, "cpu" are kernels; "auto" chooses.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 8, 100, 4).unbind()
    >>> bistoch.monarch_attention(q, k, v, block=10).shape
    torch.Size([2, 8, 100, 4])

    Reference: Yaras, Xu, Abillama, Lee, Balzano, MonarchAttention, 2025.
    """
    operator = "monarch_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    inputs.check_count(operator, "iters", iters, least=1)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    form = Form(iters, block, pad, grid, tiles, backend)
    return attend(operator, batch, query, key, value, pairs, None, form)


@export_whole
def monarch_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    eps: Option = 1.0,
    iters: int = 2,
    block: int | tuple[int, ...] | None = None,
    pad: str = "post",
    grid: tuple[int, ...] | None = None,
    tiles: tuple[int, int] = (1, 1),
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """The plan of `monarch_attention` as a dense matrix, for study.

    Arguments are those of `monarch_attention`.

    >>> import torch, bistoch
    >>> q, k = torch.randn(2, 9, 4).unbind()
    >>> bool(torch.allclose(bistoch.monarch_plan(q, k, iters=1).sum(-1), torch.ones(9)))
    True
    >>> softmax = bistoch.softmax_plan(q, k)
    >>> bool(torch.allclose(bistoch.monarch_plan(q, k, block=1), softmax, atol=1e-5))
    True
    """
    operator = "monarch_plan"
    batch = inputs.check_tokens(operator, query, key)
    inputs.check_count(operator, "iters", iters, least=1)
    pairs = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    form = Form(iters, block, pad, grid, tiles, backend)
    return dense(operator, batch, query, key, pairs, None, form)


def attend(
    operator: str, batch: torch.Size, query: Tensor, key: Tensor, value: Tensor,
    pairs: ScoreOptions, balance: BalanceOptions | None, form: Form,
) -> Tensor:  # fmt: skip
    """Check, choose, and attend."""
    problem, flat, broken = pose_monarch(operator, batch, query, key, value, pairs, balance, form)
    n, m = query.shape[-2], key.shape[-2]
    chosen = choose_backend(operator, form.backend, _MODULES, query.device, _fastest(problem))
    if n == 0 or m == 0:
        return query @ key.mT @ value
    output = show(chosen.solve(problem, flat), broken)
    return output.reshape(*batch, n, value.shape[-1]).to(query.dtype)


def dense(
    operator: str, batch: torch.Size, query: Tensor, key: Tensor,
    pairs: ScoreOptions, balance: BalanceOptions | None, form: Form,
) -> Tensor:  # fmt: skip
    """Check, choose, and make the plan: what it does to values of which each is another one."""
    chosen = choose_backend(operator, form.backend, _MODULES, query.device, "reference")
    problem, _, broken = pose_monarch(operator, batch, query, key, None, pairs, balance, form)
    n, m = query.shape[-2], key.shape[-2]
    if n == 0 or m == 0:
        return query @ key.mT
    if chosen.name == "reference":
        plan = reference.dense(problem)
    else:
        unit = torch.eye(m, dtype=problem.key.dtype, device=problem.key.device)
        plan = chosen.solve(problem, unit.expand(len(problem.key), m, m))
    plan = show(plan, broken)
    return plan.reshape(*batch, n, m).to(query.dtype)


def _fastest(problem: Monarch) -> str:
    """What "auto" stands for: the kernels, where they can run and there is work enough for them."""
    (heads, n, _), m = problem.query.shape, problem.key.shape[1]
    groups, blocks = problem.layout.own.shape
    # a head is one thread's work
    enough = 2 * heads >= _threads() and heads * (groups * m + blocks * n) >= SMALL
    if problem.query.device.type == "cpu" and HAS_NUMBA and (is_open(heads, n) or enough):
        return "cpu"
    return "reference"


@assume_constant_result
def _threads() -> int:
    return torch.get_num_threads()
