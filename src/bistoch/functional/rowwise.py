"""Attention by rows alone: other ways than softmax to turn a row of scores into weights.

No row depends on another and columns are free, so all of these may be used behind a causal mask.
Two of them need not spend their whole unit of attention, `sigmoid` and `softpick`; nor does `sink`.
"""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import _rowmaps, inputs
from bistoch.functional._nonfinite import clean_scores, show
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import Reading, ScoreOptions, flatten, per_problem, pose_scores
from bistoch.functional.precision import full_precision
from bistoch.functional.problem import Scores, dense_scores

# a map from a matrix of scores to a matrix of weights
RowMap = Callable[[Tensor], Tensor]


@full_precision
def sigmoid_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    shift: Option | None = None,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Attend with a weight for every pair that depends on no other pair.

    Arguments are those of `sigmoid_plan`.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 8, 5, 4).unbind()
    >>> bistoch.sigmoid_attention(q, k, v).shape
    torch.Size([8, 5, 4])
    """
    return _attend(
        "sigmoid_attention", _shifted("sigmoid_attention", shift, query, key, value), query, key,
        value, eps, mask, query_mask, key_mask, scale, bias="levels",
    )  # fmt: skip


@full_precision
def sigmoid_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    shift: Option | None = None,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """The sigmoid of every score for itself: rows sum to anything.

        P = sigmoid(S + shift),   S = q k^T * scale / eps + bias

    Args:
        query, key, mask, query_mask, key_mask, scale, eps: as for `elastic_attention`.
        shift: what is added to the scores, by default minus the log of the number of keys that a
            query may see: rows then sum to about one where scores are small. A number, or a tensor
            that broadcasts to the leading axes (one per head); differentiable.

    >>> import torch, bistoch
    >>> bistoch.sigmoid_plan(torch.zeros(1, 2), torch.ones(3, 2))
    tensor([[0.2500, 0.2500, 0.2500]])

    Reference: Ramapuram et al., Theory and best practices for sigmoid self-attention, 2024.
    """
    return weigh_rows(
        "sigmoid_plan", _shifted("sigmoid_plan", shift, query, key), query, key, eps, mask,
        query_mask, key_mask, scale, bias="levels",
    )  # fmt: skip


@full_precision
def softpick_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Attend to the keys with positive scores only; a query without one returns zeros.

    Arguments are those of `softpick_plan`.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 8, 5, 4).unbind()
    >>> bistoch.softpick_attention(q, k, v).shape
    torch.Size([8, 5, 4])
    """
    return _attend(
        "softpick_attention", _rowmaps.softpick, query, key, value,
        eps, mask, query_mask, key_mask, scale, bias="levels",
    )  # fmt: skip


@full_precision
def softpick_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """Rectified softmax: pairs with a negative score get nothing, rows sum to one at most.

        P_ij = relu(exp(S_ij) - 1) / sum_k |exp(S_ik) - 1|,   S = q k^T * scale / eps + bias

    Here the level of the scores matters, not only their differences. A row without a positive score
    is zero. Arguments are those of `softmax_attention`.

    >>> import torch, bistoch
    >>> scores = torch.tensor([[2.0, 0.0, -1.0], [-1.0, -2.0, -3.0]])
    >>> bistoch.softpick_plan(scores, torch.eye(3), scale=1.0)
    tensor([[0.9100, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000]])

    Reference: Zuhri, Fuadi, Aji, Softpick: no attention sink, no massive activations, 2025.
    """
    return weigh_rows(
        "softpick_plan", _rowmaps.softpick, query, key, eps, mask, query_mask, key_mask, scale,
        bias="levels",
    )  # fmt: skip


@full_precision
def sparsemax_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Attend to the few keys that the sparsest of the entmax family leaves.

    Arguments are those of `sparsemax_plan`.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 8, 5, 4).unbind()
    >>> bistoch.sparsemax_attention(q, k, v).shape
    torch.Size([8, 5, 4])
    """
    return _attend(
        "sparsemax_attention", _rowmaps.sparsemax, query, key, value,
        eps, mask, query_mask, key_mask, scale,
    )  # fmt: skip


@full_precision
def sparsemax_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """The point of the simplex nearest to the scores: rows sum to one, most entries are zero.

        P_i = argmin |p - S_i|^2 over p >= 0, sum p = 1  =  relu(S_i - t_i)

    Exact, by sorting each row. Arguments are those of `softmax_attention`.

    >>> import torch, bistoch
    >>> bistoch.sparsemax_plan(torch.tensor([[0.5, 0.0, -1.0]]), torch.eye(3), scale=1.0)
    tensor([[0.7500, 0.2500, 0.0000]])

    Reference: Martins, Astudillo, From softmax to sparsemax, ICML 2016.
    """
    return weigh_rows(
        "sparsemax_plan", _rowmaps.sparsemax, query, key, eps, mask, query_mask, key_mask, scale
    )


@full_precision
def entmax_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Attend to some keys: with weights between those of softmax and those of sparsemax.

    Arguments are those of `entmax_plan`.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 8, 5, 4).unbind()
    >>> bistoch.entmax_attention(q, k, v).shape
    torch.Size([8, 5, 4])
    """
    return _attend(
        "entmax_attention", _rowmaps.entmax, query, key, value,
        eps, mask, query_mask, key_mask, scale,
    )  # fmt: skip


@full_precision
def entmax_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """Half way from softmax to sparsemax (alpha = 1.5): rows sum to one, many entries are zero.

        P_i = argmax <p, S_i> + H(p), H of Tsallis with alpha 1.5  =  relu(S_i/2 - t_i)^2

    Exact, by sorting each row. Arguments are those of `softmax_attention`.

    >>> import torch, bistoch
    >>> bistoch.entmax_plan(torch.tensor([[0.5, 0.0, -2.0]]), torch.eye(3), scale=1.0)
    tensor([[0.6740, 0.3260, 0.0000]])

    Reference: Peters, Niculae, Martins, Sparse sequence-to-sequence models, ACL 2019.
    """
    return weigh_rows(
        "entmax_plan", _rowmaps.entmax, query, key, eps, mask, query_mask, key_mask, scale
    )


@full_precision
def normsoftmax_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    """Attend with a softmax that is never flatter than rows of scores with deviation one.

    Arguments are those of `normsoftmax_plan`.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 8, 5, 4).unbind()
    >>> bistoch.normsoftmax_attention(q, k, v).shape
    torch.Size([8, 5, 4])
    """
    return _attend(
        "normsoftmax_attention", _rowmaps.norm_softmax, query, key, value,
        eps, mask, query_mask, key_mask, scale,
    )  # fmt: skip


@full_precision
def normsoftmax_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """Softmax of scores whose rows are stretched to a standard deviation of at least one.

        P_i = softmax(S_i / min(std(S_i), 1)),   S = q k^T * scale / eps + bias

    The deviation is that of the keys a query may see. In raw dot products this is a temperature of
    min(std, sqrt(d)). Arguments are those of `softmax_attention`.

    >>> import torch, bistoch
    >>> small, usual = torch.tensor([[0.01, -0.01]]), torch.tensor([[1.0, -1.0]])
    >>> plans = [bistoch.normsoftmax_plan(x, torch.eye(2), scale=1.0) for x in (small, usual)]
    >>> bool(torch.allclose(*plans, atol=1e-3))
    True

    Reference: Jiang, Gu, Pan, NormSoftmax: normalizing the input of softmax, COINS 2023.
    """
    return weigh_rows(
        "normsoftmax_plan",
        _rowmaps.norm_softmax,
        query,
        key,
        eps,
        mask,
        query_mask,
        key_mask,
        scale,
    )


def _attend(operator, weigh: RowMap, query, key, value, *options, bias: Reading = "rows") -> Tensor:
    """Weigh the values; nothing is hidden from the gradient, so the matrix is kept."""
    batch = inputs.check_tokens(operator, query, key, value)
    scores = _pose(operator, batch, query, key, *options, bias=bias)
    scores, value, broken = clean_scores(scores, flatten(value, batch), "row")
    output = show(weigh(dense_scores(scores)) @ value, broken)
    return output.reshape(*batch, *output.shape[1:]).to(query.dtype)


def weigh_rows(operator, weigh: RowMap, query, key, *options, bias: Reading = "rows") -> Tensor:
    """The plan that a map makes of the scores, checked and posed like those of all operators.

    For `bias` see `pose.Reading`.
    """
    batch = inputs.check_tokens(operator, query, key)
    scores = _pose(operator, batch, query, key, *options, bias=bias)
    scores, _, broken = clean_scores(scores, None, "row")
    plan = show(weigh(dense_scores(scores)), broken)
    return plan.reshape(*batch, *plan.shape[1:]).to(query.dtype)


def _pose(
    operator, batch, query, key, eps, mask, query_mask, key_mask, scale, *, bias: Reading
) -> Scores:
    options = ScoreOptions(eps, scale, mask, query_mask, key_mask)
    return pose_scores(operator, batch, query, key, options, bias=bias)


def _shifted(operator: str, shift: Option | None, *tokens: Tensor) -> RowMap:
    if shift is None:
        return lambda scores: _rowmaps.sigmoid(scores, None)
    batch = inputs.check_tokens(operator, *tokens)
    inputs.check_logit(operator, "shift", shift, batch, tokens[0].device)
    return lambda scores: _rowmaps.sigmoid(scores, per_problem(shift, batch, scores))
