"""Keys that all queries attend to, queries that attend to themselves, and heads that are off.

Half precision is computed and returned in float32. Padding counts nowhere.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.analysis.metrics._real import divide, read_mask, read_plan
from bistoch.functional import inputs
from bistoch.functional.pose import working_dtype

# from which mean attention on a key counts as a sink, as in the literature
SINK = 0.3


def sink_score(
    plan: Float[Tensor, "*b n m"],
    *,
    causal: bool = False,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b m"]:
    """The mean attention a key receives from the queries that may see it, in [0, 1].

        alpha_j = c_j / (number of queries that may see key j)

    A doubly stochastic plan has 1/m for every key: without a mask it can have no sink.

    Args:
        plan: one plan or many.
        causal: whether key j is seen by the queries from j on only, or by all.
        query_mask, key_mask: True where the token is real.

    >>> sink_score(torch.tensor([[0.9, 0.1], [0.7, 0.3]]))
    tensor([0.8000, 0.2000])
    >>> sink_score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), causal=True)
    tensor([0.7500, 0.5000])

    Reference: Gu et al., When Attention Sink Emerges in Language Models, ICLR 2025.
    """
    inputs.check_flag("sink_score", "causal", causal)
    sums = read_plan("sink_score", plan, query_mask, key_mask)[0].sum(-2)
    return divide(sums, _viewers(plan.shape[-2], sums, causal, query_mask))


def sink_rate(
    score: Float[Tensor, "*b m"],
    *,
    threshold: float = SINK,
    position: int | None = None,
) -> Float[Tensor, ""]:
    """The share of plans that have a sink, in [0, 1]: a key with a sink score above `threshold`.

        mean over plans of [max_j alpha_j > threshold]

    Args:
        score: what `sink_score` returned, one row per plan. Of a causal plan, cut off the last keys
            (for example `score[..., : m // 2]`): few queries see them, and one is not a crowd.
        threshold: from which mean attention on a key is a sink.
        position: ask about this key only, for example 0 for the first token.

    >>> sink_rate(torch.tensor([[0.8, 0.1, 0.1], [0.25, 0.3, 0.45], [0.25, 0.25, 0.25]]))
    tensor(0.6667)
    """
    inputs.check_floating("sink_rate", "score", score, axes="(*b, m)", rank=1)
    inputs.check_finite("sink_rate", "threshold", threshold, example=SINK)
    if position is not None:
        inputs.check_count("sink_rate", "position", position, least=-score.shape[-1])
        if position >= score.shape[-1]:
            raise ValueError(
                f"sink_rate: position must be that of one of the {score.shape[-1]} keys, but it is "
                f"{position}; the first is 0"
            )
        score = score[..., position : position + 1 or None]
    if score.numel() == 0:
        return score.new_zeros(())
    return (score.amax(-1) > threshold).to(working_dtype(score.dtype)).mean()


def diagonal_score(
    plan: Float[Tensor, "*b n n"],
    *,
    query_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b"]:
    """The mean attention that tokens pay to themselves: 1 for the identity, 1/n for uniform.

        mean_i P_ii

    Args:
        plan: one square plan or many.
        query_mask: True where the token is real.

    >>> diagonal_score(torch.tensor([[0.9, 0.1], [0.7, 0.3]]))
    tensor(0.6000)

    Reference: Sukenik, Lopez Amado, Lampert, Mondelli, arXiv 2605.08453, 2026.
    """
    plan, queries, _ = read_plan("diagonal_score", plan, query_mask, None)
    if plan.shape[-1] != plan.shape[-2]:
        raise ValueError(
            "diagonal_score: plan must be square, from tokens to themselves, but it has "
            f"{plan.shape[-2]} queries and {plan.shape[-1]} keys"
        )
    return divide(plan.diagonal(dim1=-2, dim2=-1).sum(-1), queries.sum(-1))


def value_drain(
    score: Float[Tensor, "*b m"],
    value: Float[Tensor, "*b m e"],
    *,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b"]:
    """How large the value of the strongest sink is: near 0 when attending to it does nothing.

        |v_k| / median_j |v_j|,   k = argmax_j alpha_j

    Args:
        score: what `sink_score` returned.
        value: the values of the same keys, perhaps already times the output projection.
        key_mask: True where the key is real.

    >>> score = torch.tensor([0.8, 0.1, 0.1])
    >>> value_drain(score, torch.tensor([[0.1], [1.0], [-2.0]]))
    tensor(0.1000)

    Reference: Gu et al., When Attention Sink Emerges in Language Models, ICLR 2025.
    """
    inputs.check_floating("value_drain", "score", score, axes="(*b, m)", rank=1)
    norms, keys = _norms("value_drain", value, key_mask)
    if score.shape != norms.shape:
        raise ValueError(
            "value_drain: score and value must speak of the same keys, but their shapes are "
            f"{tuple(score.shape)} and {tuple(value.shape)}; expand value to one per plan"
        )
    if score.shape[-1] == 0:
        return norms.sum(-1)
    sink = score.masked_fill(keys == 0, -1).argmax(-1, keepdim=True)
    # of an even number, torch takes the smaller middle
    middle = norms.masked_fill(keys == 0, torch.nan).nanmedian(-1).values.nan_to_num(0)
    return divide(norms.gather(-1, sink).squeeze(-1), middle)


def switch_ratio(
    plan: Float[Tensor, "*b n m"],
    value: Float[Tensor, "*b m e"],
    *,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b n"]:
    """How much a head gives every query, next to what its values hold: 0 where it is off.

        |sum_j P_ij v_j| / mean_j |v_j|,   at most max_j |v_j| / mean_j |v_j|

    Args:
        plan: one plan or many.
        value: the values, perhaps already times the output projection.
        query_mask, key_mask: True where the token is real.

    >>> plan = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    >>> switch_ratio(plan, torch.tensor([[0.0], [1.0], [2.0]]))
    tensor([0.0000, 1.5000])

    Reference: Sukenik, Lopez Amado, Lampert, Mondelli, arXiv 2605.08453, 2026.
    """
    norms, keys = _norms("switch_ratio", value, key_mask)
    plan, _, _ = read_plan("switch_ratio", plan, query_mask, key_mask)
    if value.shape[-2] != plan.shape[-1]:
        raise ValueError(
            f"switch_ratio: value must have one row per key of plan, {plan.shape[-1]}, but its "
            f"shape is {tuple(value.shape)}; pass the values that the plan weighs"
        )
    # what stands in padding, which may be anything, is multiplied by zero otherwise
    real = value.to(plan.dtype).masked_fill(keys[..., None] == 0, 0)
    given = torch.linalg.vector_norm(plan @ real, dim=-1)
    return divide(given, divide(norms.sum(-1), keys.sum(-1))[..., None])


def off_rate(
    ratio: Float[Tensor, "*b n"],
    *,
    threshold: float = 0.05,
    query_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b"]:
    """The share of queries for which a head is off, in [0, 1].

        mean_i [ratio_i < threshold]

    Args:
        ratio: what `switch_ratio` returned.
        threshold: below which ratio a head counts as off.
        query_mask: True where the query is real.

    >>> off_rate(torch.tensor([0.01, 1.2, 0.8, 0.02]))
    tensor(0.5000)
    """
    inputs.check_floating("off_rate", "ratio", ratio, axes="(*b, n)", rank=1)
    inputs.check_finite("off_rate", "threshold", threshold, example=0.05)
    queries = read_mask("off_rate", "query_mask", query_mask, ratio.shape, ratio)
    return divide(((ratio < threshold) * queries).sum(-1), queries.sum(-1))


def _viewers(n: int, sums: Tensor, causal: bool, query_mask: Tensor | None) -> Tensor:
    """How many real queries may see each key."""
    shape = (*sums.shape[:-1], n)
    queries = read_mask("sink_score", "query_mask", query_mask, shape, sums)
    if not causal:
        return queries.sum(-1, keepdim=True).expand(sums.shape)
    if n != sums.shape[-1]:
        raise ValueError(
            "sink_score: causal needs as many queries as keys, but there are "
            f"{n} and {sums.shape[-1]}; leave causal out"
        )
    return queries.flip(-1).cumsum(-1).flip(-1)


def _norms(metric: str, value: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    inputs.check_floating(metric, "value", value, axes="(*b, m, e)", rank=2)
    norms = torch.linalg.vector_norm(value.to(working_dtype(value.dtype)), dim=-1)
    keys = read_mask(metric, "key_mask", key_mask, norms.shape, norms)
    return norms.masked_fill(keys == 0, 0), keys
