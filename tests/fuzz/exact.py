"""What results are compared with: formulas written down once more, and the reference backend."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bistoch
from fuzz.agree import HIDDEN, Values, peak

# how far below the highest of its row a bias hides a pair
FORBIDDEN = 5e3

# axes of arguments behind the leading ones; options have none
LAST = {
    "query": 2, "key": 2, "value": 2, "scores": 2, "mask": 2, "query_mask": 1, "key_mask": 1,
    "column_mass": 1, "row_mass": 1, "start": 1, "pivot_mass": 1, "directions": 2, "pivots": 2,
    "weight": 2, "theta": 1, "query_variance": 2, "key_variance": 2,
}  # fmt: skip


def leading_axes(values: Values) -> torch.Size:
    tokens = (values[name] for name in ("query", "key", "value", "scores") if name in values)
    return torch.broadcast_shapes(*(tensor.shape[:-2] for tensor in tokens))


def shape_of(values: Values) -> tuple[int, ...]:
    """The shape of the plan."""
    if "scores" in values:
        return tuple(values["scores"].shape)
    return (*leading_axes(values), values["query"].shape[-2], values["key"].shape[-2])


def plan_values(values: Values) -> Values:
    """The arguments of a plan; its queries have the leading axes that values may bring alone."""
    tokens = {name: value for name, value in values.items() if name != "value"}
    return tokens | {"query": values["query"].expand(*leading_axes(values), -1, -1)}


def allowed_pairs(values: Values, kind: str = "exact") -> Tensor:
    """Which pairs are not hidden, by docs/operators/elastic.md.

    A low bias hides its pair "exactly" where no score of an elastic plan could make up for it. The
    other kinds are "strict" (scores are not asked), "loose" (only minus infinity hides), and
    "causal" (the number alone decides, and query t and key t are one token).
    """
    allowed, causal = torch.ones(shape_of(values), dtype=torch.bool), kind == "causal"
    mask, query_mask, key_mask = (values.get(n) for n in ("mask", "query_mask", "key_mask"))
    if mask is not None and mask.dtype != torch.bool and mask.shape[-1]:
        top = mask.double().nan_to_num(-math.inf, -math.inf).amax(-1, keepdim=True)
        below = mask.double() - (0 if causal else top)
        reach = {"exact": _reach, "loose": lambda _: math.inf}.get(kind, lambda _: 0.0)(values)
        mask = (mask != -math.inf) & ~(below + reach <= -FORBIDDEN)
    if mask is not None:
        allowed = allowed & mask.bool()
    for padding, hides_queries in ((query_mask, True), (key_mask, False)):
        if padding is not None:
            rows, columns = padding[..., :, None], padding[..., None, :]
            allowed = allowed & (rows & columns if causal else rows if hides_queries else columns)
    return allowed.tril() if causal else allowed


def _reach(values: Values) -> Tensor | float:
    """By how much the scores of a row can differ."""
    if 0 in shape_of(values):
        return 0.0
    eps, scale = _option(values.get("eps")), values.get("scale")
    if "scores" in values:
        scores = values["scores"].double()
        lowest = scores.nan_to_num(math.inf, math.inf, math.inf).amin(-1, keepdim=True)
        highest = scores.nan_to_num(-math.inf, -math.inf).amax(-1, keepdim=True)
        return ((highest - lowest) / eps).clamp_min(0)
    scale = 1 / math.sqrt(max(values["query"].shape[-1], 1)) if scale is None else scale
    reach = 2 * abs(scale) / eps
    for name in ("query", "key"):
        lengths, real = (
            values[name].double().nan_to_num(0, 0, 0).norm(dim=-1),
            values.get(f"{name}_mask"),
        )
        reach = reach * (lengths if real is None else lengths * real).amax(-1)[..., None, None]
    return reach


def scores_of(values: Values, kind: str = "exact") -> Tensor:
    """The scores of a call, minus infinity where a pair is hidden."""
    if "scores" in values:
        scores = values["scores"]
    else:
        query, key, scale = values["query"], values["key"], values.get("scale")
        scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
        scores = scale * query @ key.mT
    scores = (scores / _option(values.get("eps"))).expand(*leading_axes(values), -1, -1)
    mask = values.get("mask")
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask
    return scores.masked_fill(~allowed_pairs(values, kind), -math.inf)


def elastic_oracle(values: Values, kind: str = "exact") -> Tensor:
    """The elastic plan by the formulas of its documentation, dense and in logarithms."""
    scores = scores_of(values, kind)
    lam, omega = (_option(values.get(name)) for name in ("lam", "omega"))
    # rows know no constant; without it, no potential is lost beside very negative scores
    scores = scores - scores.amax(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    mass, weight, start = (values.get(name) for name in ("column_mass", "row_mass", "start"))
    goal = 0.0 if mass is None else mass.log()[..., None, :]
    weight = torch.ones(()) if weight is None else weight[..., :, None]
    column = torch.zeros_like(scores[..., :1, :])
    column = column if start is None else column + start[..., None, :]
    for _ in range(values.get("iters", 10)):
        row = -torch.logsumexp(scores + column, -1, keepdim=True)
        step = goal - torch.logsumexp(
            scores + weight.log() + row.masked_fill(row == math.inf, 0), -2, keepdim=True
        )
        column = (1 - omega) * column + omega * lam * step.masked_fill(step == math.inf, 0)
    return weight * (scores + column).softmax(-1).nan_to_num(0)


def _option(option: float | Tensor | None) -> float | Tensor:
    if isinstance(option, Tensor):
        return option[..., None, None]
    return 1.0 if option is None else option


def quietly(function: Callable, values: Values) -> Any:
    """A call that may stop before it has converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(**values)


def reference_plan(name: str, values: Values) -> Tensor:
    tokens = plan_values(values) | ({"backend": "reference"} if "backend" in values else {})
    return quietly(bistoch.OPERATORS[name].plan, tokens)


def exact_plan(name: str, values: Values) -> Tensor:
    """The plan of an operator, by its formulas if it is one of the elastic family."""
    fixed = {"softmax": {"lam": 0.0, "iters": 0}, "sinkhorn": {"lam": 1.0}, "elastic": {}}
    if name in fixed and values.get("tol") is None and values["key"].shape[-2]:
        return elastic_oracle(values | fixed[name], "loose" if name == "softmax" else "exact")
    return reference_plan(name, values)


def sizes_of(values: Values) -> dict[str, float]:
    """Sizes of what is added up in a score, in a result and in gradients."""
    eps, scale, mask = values.get("eps", 1.0), values.get("scale"), values.get("mask")
    cold = peak(1 / eps.double()) if isinstance(eps, Tensor) else 1 / eps if eps else 1.0
    if "scores" in values:
        n, pull, size = values["scores"].shape[-2], 1.0, peak(values["scores"])
        sizes = {"score": cold * size, "gradient of scores": cold}
    else:
        query, key, value = (values.get(name, values["key"]) for name in ("query", "key", "value"))
        n, (q, k) = query.shape[-2], (peak(x.double().norm(dim=-1)) for x in (query, key))
        if "rank" in values:
            # both meet pivots, not each other
            pivots = values.get("pivots", torch.full((query.shape[-1],), 2**0.5))
            q, k = (max(size, peak(pivots.double().norm(dim=-1))) for size in (q, k))
        scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
        pull, sharp = peak(value) * value.shape[-1], cold * abs(scale)
        sizes = {"score": sharp * q * k, "result": peak(value)}
        sizes |= {"gradient of query": pull * sharp * k, "gradient of key": pull * sharp * q * n}
        if "query_variance" in values or "key_variance" in values:
            sizes["score"] = 2 * sharp * (q**2 + k**2 + 8 * query.shape[-1])
    if mask is not None and mask.dtype != torch.bool:
        # a row of low numbers only; those beside higher ones hide their pairs
        top = mask.double().amax(-1) if mask.shape[-1] else mask.new_zeros(())
        sizes["score"] += peak(top[top.abs() < HIDDEN])
    score = sizes["score"]
    sizes |= {"gradient of value": n, "gradient of eps": pull * n * score * cold}
    others = (
        "mask",
        "lam",
        "omega",
        "column_mass",
        "row_mass",
        "start",
        "logit",
        "shift",
        "tau",
        "weight",
    )
    return sizes | {f"gradient of {name}": pull * n * (1 + score) for name in others}


def terms_of(values: Values) -> int:
    """How many roundings the longest way from an input to a result has."""
    features = values["query"].shape[-1] if "query" in values else 0
    return sum(shape_of(values)[-2:]) + features + values.get("iters", 10) + 8
