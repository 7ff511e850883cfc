"""What moments, steps and layers must keep, and where a NaN or an infinity must show."""

import copy
import math
import random
from typing import Any

import torch
from torch import Tensor

import bistoch
from fuzz.agree import Results, Values, agree, peak, working
from fuzz.call import Call, evaluate
from fuzz.exact import (
    plan_values,
    reference_plan,
    sizes_of,
)
from fuzz.promises import ensure, invoke, judge, operator_of, readings, without

# their rows are connected by columns alone, and columns by iterations
BY_COLUMNS = ("elastic", "sinkhorn", "wasserstein", "lowrank")


def check_moments(call: Call, seed: int) -> None:
    """`wasserstein_moments` are the plan and its square, times means and variances."""
    values = call.values()
    found = invoke(call, bistoch.wasserstein_moments, **values)
    dtypes = {found.mean.dtype, found.variance.dtype, values["query"].dtype}
    ensure(len(dtypes) == 1, "a moment has another dtype than its query")

    def again(values: Values) -> Results:
        plan = reference_plan("wasserstein", without(values, "value_variance"))
        variance = plan.square() @ values["value_variance"]
        return {"mean": plan @ values["value"], "variance": variance}

    judge(found._asdict(), again, values, pairs=True)


def check_steps(call: Call, seed: int) -> None:
    """However a sequence is cut into steps, the rows are those of the whole."""
    values, cuts = call.values(), call.notes["cuts"]
    rows, state = [], None
    for first, last in zip([0, *cuts], [*cuts, values["query"].shape[-2]], strict=True):
        step = values | {"query": values["query"][..., first:last, :], "state": state}
        for name, axis in (("query_mask", -1), ("mask", -2)):
            if name in values and values[name].shape[axis] != 1:
                step[name] = values[name].narrow(axis, first, last - first)
        row, state = invoke(call, bistoch.causal_elastic_step, **step)
        rows.append(row)

    def again(values: Values) -> Results:
        return {"result": reference_plan("causal_elastic", values) @ values["value"]}

    ensure(rows[0].dtype == values["query"].dtype, "a step has another dtype than its query")
    judge({"result": torch.cat(rows, -2)}, again, values, pairs=True)


def check_layer(call: Call, seed: int) -> None:
    """A layer is its projections around its plan, and causal under autocast if its operator is."""
    values, made = call.values(), evaluate(call.function)
    query, masks = values["query"], without(values, "query")

    def run(layer: torch.nn.Module, query: Tensor, masks: Values, *, by_plan: bool) -> Tensor:
        if isinstance(layer, bistoch.nn.MultiheadAttention):
            mask, padding = masks.get("mask"), masks.get("key_mask")
            mask = ~mask if mask is not None and mask.dtype == torch.bool else mask
            padding = None if padding is None else ~padding
            hidden = {"attn_mask": mask, "key_padding_mask": padding, "need_weights": by_plan}
            return invoke(call, layer, query, query, query, **hidden)[0]
        if not by_plan:
            return invoke(call, layer, query, **masks)
        split = (*query.shape[:-1], layer.heads, query.shape[-1] // layer.heads)
        heads = layer.plan(query, **masks) @ layer.value(query).reshape(split).transpose(-3, -2)
        return layer.out(heads.transpose(-3, -2).reshape(query.shape))

    def again(values: Values) -> Results:
        layer = copy.deepcopy(made).to(values["query"].dtype)
        return {"result": run(layer, values["query"], without(values, "query"), by_plan=True)}

    found = run(made, query, masks, by_plan=False)
    ensure(found.shape == query.shape, "a layer changes the shape")
    # projections round what the operator sees
    sizes = {"result": 4.0, "score": 8.0}
    agree({"result": found}, again, values, terms=16 * (query.shape[-2] + 16), sizes=sizes)
    if made.operator.causal and made.operator.row.masks == "any" and query.dtype == torch.float32:
        n = query.shape[-2]
        low = torch.finfo(random.Random(seed).choice((torch.float32, torch.bfloat16))).min
        causal = {"mask": torch.full((n, n), low).triu(1)}
        later = torch.arange(n)[:, None] >= n // 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            one, other = (
                run(made, x, causal, by_plan=False) for x in (query, query + later.to(query))
            )
        ensure(torch.equal(one[..., : n // 2, :], other[..., : n // 2, :]), "the future leaks")


def check_poisoned(call: Call, seed: int) -> None:
    """A number that is none shows in every row that depends on it, and in no other."""
    where, number = call.notes["where"], call.notes["number"]
    clean, row = call.values(), operator_of(call)
    if not clean[where].numel():
        return
    place = int(call.notes["place"] * clean[where].numel())
    call.arguments[where] = f"put({call.arguments[where]}, {place}, {number})"
    values = call.values()
    functions = [(evaluate(call.function), dict)]
    if where in ("query", "key", "mask") and "query" in values:
        functions.append((row.plan, plan_values))
    if not torch.equal(*readings(row, values)):
        return
    lam = values.get("lam")
    if row.name in BY_COLUMNS and not isinstance(lam, Tensor) and lam == 0:
        # columns stand still, and whether rows are told apart then is not promised
        return
    broken = broken_rows(row, values, where)
    others = ~broken.any(-1)
    for function, given in functions:
        found, usual = (invoke(call, function, **given(x)) for x in (values, clean))
        what = f"{number} in {where} of {function.__name__}"
        ensure(found[broken].isnan().all(), f"{what} does not show in a row that it reaches")
        ensure(found[~broken].isfinite().all(), f"{what} shows in a row that it cannot reach")
        # rounding depends on how tokens lie in memory
        off = peak(found[others].double() - usual[others].double())
        scores = sizes_of(clean)["score"]
        most = torch.finfo(found.dtype).eps + torch.finfo(working(found.dtype)).eps * scores
        most *= 16 * max(1.0, peak(usual[others].double()))
        ensure(off <= most, f"{what} changes its neighbours by {off:.3g}")


def broken_rows(row: Any, values: Values, where: str) -> Tensor:
    """The rows that depend on what is not finite, by docs/nonfinite.md."""
    wrong = ~values[where].isfinite() & (values[where] != -math.inf)
    if where in ("query", "key", "value"):
        wrong = ~values[where].isfinite().all(-1)
        wrong = wrong[..., :, None] if where == "query" else wrong[..., None, :]
    allowed, _ = readings(row, values)
    hit = (wrong & allowed).any(-1) & (not row.static or where not in ("query", "key"))
    if row.always_causal:
        hit = hit.cumsum(-1) > 0
    elif not row.rows_stand_alone and not (row.name in BY_COLUMNS and values.get("iters") == 0):
        hit = hit.any(-1, keepdim=True)
    return hit & allowed.any(-1)
