"""How many directions are left: rank metrics of hidden states, and of plans as matrices.

Half precision is computed and returned in float32. Padding counts nowhere.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.analysis.metrics._real import divide, read_plan, read_states
from bistoch.functional import inputs


def rank_one_residual(
    states: Float[Tensor, "*b n d"],
    *,
    norm: Literal["frobenius", "composite"] = "frobenius",
    token_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b"]:
    """How far tokens are from being all the same: 0 when they are, 1 when their mean is zero.

        |X - 1 x^T| / |X|,   x the mean token

    Args:
        states: one state per token.
        norm: "frobenius", with a ratio in [0, 1]; or "composite", the root of the largest absolute
            column sum times the largest absolute row sum, with a ratio in [0, 2].
        token_mask: True where the token is real.

    >>> rank_one_residual(torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
    tensor(0.)
    >>> rank_one_residual(torch.tensor([[1.0, 2.0], [-1.0, -2.0]]), norm="composite")
    tensor(1.)

    Reference: Dong, Cordonnier, Loukas, Attention Is Not All You Need, ICML 2021.
    """
    inputs.check_choice("rank_one_residual", "norm", norm, ("frobenius", "composite"))
    states, tokens = read_states("rank_one_residual", states, token_mask)
    size = _frobenius if norm == "frobenius" else _composite
    return divide(size(_centre(states, tokens)), size(states))


def contraction(
    before: Float[Tensor, "*b n d"],
    after: Float[Tensor, "*b r e"],
    *,
    token_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b"]:
    """What a layer left of the differences between tokens: below 1 it smooths, above 1 it sharpens.

        |Y - 1 y^T| / |X - 1 x^T|   (Frobenius)

    Args:
        before, after: the states around a layer; the number of tokens may change.
        token_mask: True where the token is real, before and after.

    >>> before = torch.tensor([[1.0], [3.0]])
    >>> contraction(before, torch.tensor([[1.5], [2.5]]))
    tensor(0.5000)
    """
    before, giving = read_states("contraction", before, token_mask, name="before")
    after, given = read_states("contraction", after, token_mask, name="after")
    if before.shape[:-2] != after.shape[:-2]:
        raise ValueError(
            "contraction: before and after must have the same leading axes, but their shapes are "
            f"{tuple(before.shape)} and {tuple(after.shape)}; expand one of them"
        )
    return divide(_frobenius(_centre(after, given)), _frobenius(_centre(before, giving)))


def worst_contraction(
    plan: Float[Tensor, "*b n m"],
    *,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b"]:
    """The most that a plan can leave of the differences between values: sigma_2 if it is balanced.

        max over v of |res(P v)| / |res(v)|  =  sigma_1((I - J) P),   J the matrix of 1/n

    Exact for every plan whose rows sum to one. It is never below sigma_2, and equals it when the
    plan is doubly stochastic, because then the mean and the differences do not mix.

    Args:
        plan: one plan or many.
        query_mask, key_mask: True where the token is real.

    >>> plans = torch.stack([torch.eye(3), torch.full((3, 3), 1 / 3)])
    >>> [round(most, 4) for most in worst_contraction(plans).tolist()]
    [1.0, 0.0]
    """
    plan, queries, _ = read_plan("worst_contraction", plan, query_mask, key_mask)
    values = _singular_values(_centre(plan, queries))
    return values[..., 0] if values.shape[-1] else values.sum(-1)


def singular_values(
    plan: Float[Tensor, "*b n m"],
    *,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b r"]:
    """The singular values of a plan, falling: the first of a doubly stochastic plan is 1.

    With fewer keys than queries or more, balanced means sqrt(n/m). `second_singular_value` is the
    one that says how fast differences between tokens fade.

    >>> singular_values(torch.eye(2))
    tensor([1., 1.])
    """
    return _singular_values(read_plan("singular_values", plan, query_mask, key_mask)[0])


def second_singular_value(
    plan: Float[Tensor, "*b n m"],
    *,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b"]:
    """sigma_2 of a plan: 0 for a rank-one plan, 1 for a permutation, at most 1 if balanced.

    A doubly stochastic plan keeps the mean token, and shrinks differences to at most sigma_2 times
    what they were; both are exact.

    >>> second_singular_value(torch.full((4, 4), 0.25)).item() < 1e-6
    True
    """
    values = _singular_values(read_plan("second_singular_value", plan, query_mask, key_mask)[0])
    return values[..., 1] if values.shape[-1] > 1 else values.new_zeros(values.shape[:-1])


def effective_rank(
    states: Float[Tensor, "*b n d"], *, token_mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*b"]:
    """How many directions carry the states, softly counted: from 1 to the rank, 0 for all zeros.

        exp(H(p)),   p_k = sigma_k / sum_l sigma_l

    Takes hidden states, or plans.

    >>> [round(effective_rank(x).item(), 4) for x in (torch.eye(3), torch.ones(3, 2))]
    [3.0, 1.0]

    Reference: Roy, Vetterli, The effective rank, EUSIPCO 2007.
    """
    values = _singular_values(read_states("effective_rank", states, token_mask)[0])
    total = values.sum(-1, keepdim=True)
    share = divide(values, total)
    entropy = -(share * torch.where(share > 0, share, 1).log()).sum(-1)
    return torch.where(total.squeeze(-1) > 0, entropy.exp(), 0)


def stable_rank(
    states: Float[Tensor, "*b n d"], *, token_mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*b"]:
    """How many directions are as strong as the strongest: from 1 to the rank, 0 for all zeros.

        |X|_F^2 / sigma_1^2

    Takes hidden states, or plans.

    >>> stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0])))
    tensor(1.5000)

    Reference: Rudelson, Vershynin, Sampling from large matrices, JACM 2007.
    """
    values = _singular_values(read_states("stable_rank", states, token_mask)[0])
    if values.shape[-1] == 0:
        return values.sum(-1)
    return divide(values, values[..., :1]).square().sum(-1)


def mean_cosine(
    states: Float[Tensor, "*b n d"], *, token_mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*b"]:
    """The mean cosine between two different tokens: 1 when all point the same way.

        mean over i != j of <x_i, x_j> / (|x_i| |x_j|),   at least -1/(n - 1)

    A token that is zero has cosine zero with all others. Linear in the number of tokens.

    >>> mean_cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]))
    tensor(0.3333)
    """
    states, tokens = read_states("mean_cosine", states, token_mask)
    states = _near_one(states, (-1,))
    unit = divide(states, torch.linalg.vector_norm(states, dim=-1, keepdim=True))
    count = tokens.sum(-1)
    # the square of the sum holds every pair, and each token with itself
    pairs = unit.sum(-2).square().sum(-1) - unit.square().sum((-2, -1))
    return divide(pairs, count * (count - 1))


def _centre(states: Tensor, tokens: Tensor) -> Tensor:
    mean = divide(states.sum(-2), tokens.sum(-1, keepdim=True))
    return (states - mean[..., None, :]) * tokens[..., None]


def _near_one(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Numbers over the largest of them: the squares of very large or small ones are lost."""
    return divide(x, _largest(x, axes)) if x.numel() else x


def _largest(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.detach().abs().amax(axes, keepdim=True)


def _frobenius(x: Tensor) -> Tensor:
    if 0 in x.shape[-2:]:
        return x.sum((-2, -1))
    return torch.linalg.matrix_norm(_near_one(x, (-2, -1))) * _largest(x, (-2, -1))[..., 0, 0]


def _composite(x: Tensor) -> Tensor:
    if 0 in x.shape[-2:]:
        return x.sum((-2, -1))
    size = x.abs()
    return size.sum(-2).amax(-1).sqrt() * size.sum(-1).amax(-1).sqrt()


def _singular_values(x: Tensor) -> Tensor:
    return torch.linalg.svdvals(x)
