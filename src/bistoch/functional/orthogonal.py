"""Orthogonal attention: the squared entries of an orthogonal or unitary matrix are a plan."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import working_dtype
from bistoch.functional.precision import full_precision
from bistoch.functional.square import restore, square_scores
from bistoch.functional.unitary import cayley, exponential, hermitian

METHODS = ("qr", "lq", "cayley", "expm")
TRIANGULAR = ("qr", "lq")
LARGE = 1e7


@full_precision
def orthogonal_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    method: str = "qr",
    ancilla: int = 1,
    ridge: float = 1e-4,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Attend with the doubly stochastic plan of `orthogonal_plan`, whose arguments these are.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 8, 5, 4).unbind()
    >>> bistoch.orthogonal_attention(q, k, v).shape
    torch.Size([2, 8, 5, 4])
    """
    operator = "orthogonal_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    plan, value = _plan(
        operator, batch, query, key, value, method, ancilla, ridge,
        {"eps": eps, "mask": mask, "query_mask": query_mask, "key_mask": key_mask, "scale": scale},
    )  # fmt: skip
    return (plan @ value.reshape(*batch, *value.shape[1:])).to(query.dtype)


@full_precision
def orthogonal_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    method: str = "qr",
    ancilla: int = 1,
    ridge: float = 1e-4,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """A doubly stochastic plan without iterations: squared entries of a matrix of unit vectors.

        qr:           P = U * U,   U R = S, the published one; keys choose in their order
        lq:           P = U * U,   L U = S, its mirror image; queries choose in their order
        cayley, expm: P = |U|^2,   U = (1 + iH/2)/(1 - iH/2) or exp(iH),
                      H = (S + S^T)/2 + i (S - S^T)/2

    There must be as many queries as keys.

    Args:
        query, key, query_mask, key_mask, scale: as for `elastic_attention`. Padding must leave as
            many queries as keys. Single pairs cannot be hidden: `mask` must be None.
        method: "qr", "lq", "cayley" or "expm".
        ancilla: how many plans to average. For "qr" their keys, for "lq" their queries, start at so
            many evenly spaced places; for "cayley" and "expm" their scores are multiplied by 1/a,
            3/a, 5/a, ...
        ridge: for "qr" and "lq": how short, against a typical score, a direction must be to count
            as none. The mass of tokens without a direction of their own is shared out evenly.
        eps: temperature; the scores are divided by it.

    >>> import torch, bistoch
    >>> bistoch.orthogonal_plan(torch.tensor([[3.0, 1.0], [4.0, 2.0]]), torch.eye(2))
    tensor([[0.3600, 0.6400],
            [0.6400, 0.3600]])

    Reference: Born et al., Quantum doubly stochastic transformers, 2025.
    """
    operator = "orthogonal_plan"
    batch = inputs.check_tokens(operator, query, key)
    plan, _ = _plan(
        operator, batch, query, key, None, method, ancilla, ridge,
        {"eps": eps, "mask": mask, "query_mask": query_mask, "key_mask": key_mask, "scale": scale},
    )  # fmt: skip
    return plan.to(query.dtype)


def _plan(
    operator, batch, query, key, value, method, ancilla, ridge, options
) -> tuple[Float[Tensor, "*b n n"], Any]:
    """The plan in working precision, and the values to apply it to."""
    inputs.check_choice(operator, "method", method, METHODS)
    inputs.check_count(operator, "ancilla", ancilla, least=1)
    inputs.check_ridge(operator, ridge)
    dtype = working_dtype(query.dtype)
    if method in TRIANGULAR:
        # what earlier keys leave of a column may be as short as the ridge: a difference that
        # costs four digits, which the double of float32 has
        query, key = query.double(), key.double()
    square = square_scores(operator, batch, query, key, value, **options)
    if method == "qr":
        plan = _by_directions(square.scores, square.real, ancilla, ridge)
    elif method == "lq":
        plan = _by_directions(square.scores.mT, square.real, ancilla, ridge).mT
    else:
        plan = _by_rotation(square.scores, method, ancilla)
    return restore(plan.to(dtype), square, batch), square.value


def _by_directions(
    scores: Float[Tensor, "B n n"], real: Bool[Tensor, "B n"] | None, ancilla: int, ridge: float
) -> Float[Tensor, "B n n"]:
    """The mean over `ancilla` starting places of the plan whose columns choose in cyclic order."""
    n = scores.shape[-1]
    if real is None:
        real = scores.new_ones(scores.shape[:2], dtype=torch.bool)
    count = real.sum(-1, keepdim=True)
    place = torch.arange(n, device=scores.device)
    plan = torch.zeros_like(scores)
    for start in range(ancilla):
        first = count * start // ancilla
        # padding stands behind the real columns, and stays there
        order = torch.where(real, (place + first) % count.clamp_min(1), place)
        inverse = order.argsort(dim=-1)[:, None, :].expand_as(scores)
        turned = scores.gather(-1, order[:, None, :].expand_as(scores))
        plan = plan + _directions(turned, real, ridge).gather(-1, inverse)
    return plan / ancilla


def _directions(
    scores: Float[Tensor, "B n n"], real: Bool[Tensor, "B n"], ridge: float
) -> Float[Tensor, "B n n"]:
    """The squared entries of what each column adds to the columns before it, of length one.

    The ridge below the scores takes the part of a column that is no new direction. What then is
    missing in rows and columns is filled by a matrix of rank one, the mean of all completions.
    """
    n = scores.shape[-1]
    typical = scores.square().sum((-2, -1)) / real.sum(-1).clamp_min(1).square()
    foot = torch.eye(n, dtype=scores.dtype, device=scores.device)
    foot = foot * (ridge * (1 + typical).sqrt())[:, None, None]
    squares = torch.linalg.qr(torch.cat([scores, foot], -2)).Q.square()
    decided = squares[:, :n]
    rows = (1 - decided.sum(-1)).clamp_min(0) * real
    columns = squares[:, n:].sum(-2) * real
    total = columns.sum(-1, keepdim=True)
    shares = columns / torch.where(total > 0, total, 1)
    return decided + rows[:, :, None] * shares[:, None, :]


def _by_rotation(
    scores: Float[Tensor, "B n n"], method: str, ancilla: int
) -> Float[Tensor, "B n n"]:
    """The mean over `ancilla` strengths of the squared moduli of a unitary matrix.

    A coupling of strength A between tokens and ancilla makes the blocks of one large unitary
    matrix; the mean of their squares depends on nothing but the eigenvalues of A.
    """
    unitary = cayley if method == "cayley" else exponential
    # beyond this the Cayley transform is minus one to all digits, and phases are noise
    generator = hermitian(scores.clamp(-LARGE, LARGE))
    plan = torch.zeros_like(scores)
    for level in range(ancilla):
        matrix = unitary(generator * ((2 * level + 1) / ancilla))
        plan = plan + matrix.real.square() + matrix.imag.square()
    return plan / ancilla
