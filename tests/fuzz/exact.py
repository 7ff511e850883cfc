"""What results are compared with: formulas written down once more, and the reference backend."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from scipy.optimize import linprog
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


def elastic_oracle(values: Values, kind: str = "exact", *, log: bool = False) -> Tensor:
    """The elastic plan, or its log, by the formulas of its documentation, dense, in logarithms."""
    scores = scores_of(values, kind)
    lam, omega = (_option(values.get(name)) for name in ("lam", "omega"))
    # rows know no constant; without it, no potential is lost beside very negative scores
    level = scores.detach().amax(-1, keepdim=True)
    scores = scores - level.clamp_min(torch.finfo(scores.dtype).min)
    mass, weight, start = (values.get(name) for name in ("column_mass", "row_mass", "start"))
    goal = 0.0 if mass is None else mass.log()[..., None, :]
    weight = torch.ones(()) if weight is None else weight[..., :, None]
    column = torch.zeros_like(scores[..., :1, :])
    column = column if start is None else column + start[..., None, :]
    for _ in range(values.get("iters", 10)):
        row = -_log_sums(scores + column, -1)
        step = goal - _log_sums(scores + weight.log() + row.masked_fill(row == math.inf, 0), -2)
        column = (1 - omega) * column + omega * lam * step.masked_fill(step == math.inf, 0)
    hidden = scores == -math.inf
    logits = (scores + column).masked_fill(hidden.all(-1, keepdim=True), 0)
    if log:
        return (logits.log_softmax(-1) + weight.log()).masked_fill(hidden, -math.inf)
    return weight * logits.softmax(-1).masked_fill(hidden, 0)


def _log_sums(terms: Tensor, axis: int) -> Tensor:
    """Of no terms minus infinity, without a gradient."""
    none = (terms == -math.inf).all(axis, keepdim=True)
    sums = torch.logsumexp(terms.masked_fill(none, 0), axis, keepdim=True)
    return sums.masked_fill(none, -math.inf)


def codes_oracle(values: Values) -> Tensor:
    """`prototype_codes`: a column step with row potentials of zero, and all others of `balance`."""
    if values["iters"]:
        goal = values["column_mass"].log() if "column_mass" in values else torch.zeros(())
        step = goal - _log_sums(scores_of(values), -2).squeeze(-2)
        lam = values.get("lam", 1.0)
        step = step * (lam[..., None] if isinstance(lam, Tensor) else lam)
        start = step.masked_fill(~step.isfinite(), 0)
        values = values | {"start": start, "iters": values["iters"] - 1}
    return elastic_oracle(values)


def match_oracle(values: Values) -> dict[str, Tensor]:
    """`match` by docs/matching.md: one matrix with what stays single as its last row and column."""
    scores, bins, eps = scores_of(values), "bin_score" in values, _option(values.get("eps"))
    *batch, n, m = scores.shape
    eps = eps[..., 0] if isinstance(eps, Tensor) else eps
    real = [
        values.get(name, torch.ones(size, dtype=torch.bool)).expand(*batch, size)
        for name, size in (("query_mask", n), ("key_mask", m))
    ]
    room = [side.sum(-1, keepdim=True).to(scores).log() for side in reversed(real)]
    # prices have no corner, and potentials of zero in place of sums
    row_single, column_single = (scores.new_full(side.shape, -math.inf) for side in real)
    corner = scores.new_full((*batch, 1), -math.inf)
    if bins:
        bin_score = torch.as_tensor(values["bin_score"], dtype=scores.dtype)[..., None] / eps
        # a bin that has no room is not there
        hidden = [side == -math.inf for side in room]
        row_single, column_single, corner = (
            bin_score.expand(x.shape).masked_fill(gone, -math.inf)
            for x, gone in (
                (row_single, ~real[0] | hidden[1]),
                (column_single, ~real[1] | hidden[0]),
                (corner, hidden[0] | hidden[1]),
            )
        )
    if "row_price" in values:
        price = -torch.as_tensor(values["row_price"], dtype=scores.dtype) / eps
        row_single = price.expand(real[0].shape).masked_fill(~real[0], -math.inf)
    if "column_price" in values:
        price = -torch.as_tensor(values["column_price"], dtype=scores.dtype) / eps
        column_single = price.expand(real[1].shape).masked_fill(~real[1], -math.inf)
    mask = values.get("mask")
    if mask is not None and mask.dtype != torch.bool and m:
        # where all biases of a row are low, the row stays single
        low = mask.double().amax(-1, keepdim=True) <= -FORBIDDEN
        far = low & (scores.detach() <= row_single[..., None].detach() - FORBIDDEN)
        scores = scores.masked_fill(far & (row_single[..., None] > -math.inf), -math.inf)
    whole = torch.cat([scores, row_single[..., None]], -1)
    whole = torch.cat([whole, torch.cat([column_single, corner], -1)[..., None, :]], -2)
    goals = [
        torch.cat([torch.zeros_like(x[..., :1]).expand(*batch, k), x], -1)
        for x, k in zip(room, (n, m), strict=True)
    ]
    row, column = torch.zeros_like(whole[..., :1]), torch.zeros_like(whole[..., :1, :])

    def step(potential: Tensor, goal: Tensor, axis: int) -> Tensor:
        sums = _log_sums(whole + potential, axis)
        goal = goal.unsqueeze(axis)
        moved = torch.where(sums == -math.inf, 0, goal.masked_fill(goal == -math.inf, 0) - sums)
        held = torch.zeros_like(moved.narrow(-3 - axis, -1, 1))
        short = moved.narrow(-3 - axis, 0, moved.shape[-3 - axis] - 1)
        return moved if bins else torch.cat([short, held], -3 - axis)

    for _ in range(values.get("iters", 50)):
        row = step(column, goals[0], -1)
        column = step(row, goals[1], -2)
    if values.get("end", "rows") == "rows":
        row = step(column, goals[0], -1)
    logs = whole + row + column
    return {
        "log_plan": logs[..., :-1, :-1],
        "log_rows": logs[..., :-1, -1],
        "log_columns": logs[..., -1, :-1],
    }


def best_assignment(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[float, float]:
    """Of one matrix, as a linear program: the most units, and then the largest sum of scores."""
    n, m = scores.shape
    allowed = (scores > -math.inf).flatten()
    sums = torch.cat([torch.eye(n).repeat_interleave(m, 1), torch.eye(m).repeat(1, n)])[:, allowed]
    if not sums.shape[1]:
        return 0.0, 0.0
    most = torch.cat([rows, columns])
    count = -linprog(-sums[0] * 0 - 1, sums, most).fun
    gain = -scores.flatten()[allowed]
    return count, -linprog(gain, sums, most, sums[:1] * 0 + 1, [round(count)]).fun


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
            sizes["gradient of key"] = 2 * pull * sharp * (q + k) * n
    if mask is not None and mask.dtype != torch.bool:
        # a row of low numbers only; those beside higher ones hide their pairs
        top = mask.double().amax(-1) if mask.shape[-1] else mask.new_zeros(())
        sizes["score"] += peak(top[top.abs() < HIDDEN])
    for name in ("bin_score", "row_price", "column_price"):
        sizes["score"] += cold * peak(torch.as_tensor(values.get(name, 0.0)).double())
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
        "bin_score",
        "row_price",
        "column_price",
    )
    return sizes | {f"gradient of {name}": pull * n * (1 + score) for name in others}


def terms_of(values: Values) -> int:
    """How many roundings the longest way from an input to a result has."""
    features = values["query"].shape[-1] if "query" in values else 0
    return sum(shape_of(values)[-2:]) + features + values.get("iters", 10) + 8
