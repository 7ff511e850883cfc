"""What functions of given scores must keep: plans, logs, potentials, matching, assignment."""

import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import bistoch
from fuzz.agree import HIDDEN, Results, Values, convert, peak, working
from fuzz.call import Call, evaluate
from fuzz.check_operators import check_plan
from fuzz.exact import (
    allowed_pairs,
    best_assignment,
    codes_oracle,
    elastic_oracle,
    match_oracle,
    quietly,
    scores_of,
    shape_of,
    sizes_of,
    terms_of,
)
from fuzz.promises import ensure, floating, gradients, invoke, judge, operator_of, without


def check_scores(call: Call, seed: int) -> None:
    """`balance`, and `gumbel_balance` without noise, are the elastic plan of scores."""
    function, values = evaluate(call.function), call.values()
    plan = invoke(call, function, **values)
    ensure(plan.shape == values["scores"].shape, "the plan has a wrong shape")
    ensure(plan.dtype == values["scores"].dtype, "the plan has another dtype than the scores")
    check_plan(plan, values, operator_of(call))
    own = {name: values.pop(name) for name in ("noise", "generator") if name in values}

    def reference(values: Values) -> Tensor:
        return quietly(bistoch.balance, values | {"backend": "reference"})

    def again(values: Values) -> Results:
        by_formula = values.get("tol") is None and plan.numel()
        return {"plan": elastic_oracle(values) if by_formula else reference(values)}

    judge({"plan": plan}, again, values, pairs=True)
    if random.Random(seed).random() < 0.3 and values.get("tol") is None:
        wanted = floating(values)
        found = gradients(
            lambda x: invoke(call, function, **x, **own), values, wanted, **call.limits
        )
        judge(found, lambda x: gradients(reference, x, wanted), values, pairs=True)


def check_logs(call: Call, seed: int) -> None:
    """`log_balance` and `prototype_codes` are the elastic plan by its formulas."""
    function, values = evaluate(call.function), call.values()
    scores, log = values["scores"], function is bistoch.log_balance
    hidden = ~allowed_pairs(values)

    def plain(result: Tensor) -> Tensor:
        return result.masked_fill(hidden, 0) if log else result

    def again(values: Values) -> Tensor:
        if values.get("tol") is not None:
            return plain(quietly(function, values | {"backend": "reference"}))
        return plain(elastic_oracle(values, log=True) if log else codes_oracle(values))

    found = invoke(call, function, **values)
    ensure(found.shape == scores.shape and found.dtype == scores.dtype, "a wrong shape or dtype")
    ensure((found[hidden] == (-math.inf if log else 0)).all(), "a hidden pair has weight")
    if not found.numel():
        return
    judge({"plan": plain(found)}, lambda x: {"plan": again(x)}, values, pairs=True)
    # a log that half precision does not hold is minus infinity
    if (
        random.Random(seed).random() < 0.5
        and values.get("tol") is None
        and found[~hidden].isfinite().all()
    ):
        wanted = floating(values)
        slopes = gradients(lambda x: plain(invoke(call, function, **x)), values, wanted)
        judge(slopes, lambda x: gradients(again, x, wanted), values, pairs=True)


def check_match(call: Call, seed: int) -> None:
    """`match` by its formulas; sums of the side that was scaled last, and pairs that are best."""
    values = call.values()
    scores, ends_on_rows = values["scores"], values.get("end", "rows") == "rows"
    found = invoke(call, bistoch.match, **values)
    (*batch, n, m), logs = scores.shape, ("log_plan", "log_rows", "log_columns")
    shapes = [list(x.shape) for x in found]
    sides = [[*batch, n, m], [*batch, n], [*batch, m]]
    ensure(shapes == [*sides, [*batch, n], *sides, batch], f"shapes are {shapes}")
    ensure(not any(x.isnan().any() for x in found), "a result is NaN")
    ensure({x.dtype for x in (*found[:3], *found[4:7])} == {scores.dtype}, "another dtype")
    if not scores.numel() or peak(scores_of(values).nan_to_num(0, 0, 0)) > HIDDEN:
        return
    axis = -1 if ends_on_rows else -2
    single = found.rows if ends_on_rows else found.columns
    sums = (found.plan.double().sum(axis) + single.double()).nan_to_num(0)
    doubles = convert(values, working(scores.dtype), torch.float64)
    exact = quietly(match_oracle, {"values": doubles})
    hidden = {name: exact[name] == -math.inf for name in logs}
    alive = ~(hidden["log_plan"].all(axis) & hidden["log_rows" if ends_on_rows else "log_columns"])
    off = peak(sums - alive.double())
    most = torch.finfo(scores.dtype).eps * 4 * (n + m + 4) + 1e-5 * sizes_of(values)["score"]
    ensure(off <= most, f"sums of the last step are off by {off:.3g}")

    def plain(result: Any) -> Tensor:
        parts = [getattr(result, x).masked_fill(hidden[x], 0).flatten(len(batch)) for x in logs]
        return torch.cat(parts, -1)

    def again(values: Values) -> Tensor:
        if values.get("tol") is not None:
            return plain(quietly(bistoch.match, values | {"backend": "reference"}))
        return plain(SimpleNamespace(**match_oracle(values)))

    for name in logs:
        ensure((getattr(found, name)[hidden[name]] == -math.inf).all(), f"{name} of nothing")
    judge({"logs": plain(found)}, lambda x: {"logs": again(x)}, values, pairs=True)
    if scores.dtype == working(scores.dtype):
        check_pairs(found, values.get("threshold", 0.0))
    finite = plain(found).isfinite().all()
    if random.Random(seed).random() < 0.5 and values.get("tol") is None and finite:
        wanted = floating(values)
        slopes = gradients(lambda x: plain(invoke(call, bistoch.match, **x)), values, wanted)
        judge(slopes, lambda x: gradients(again, x, wanted), values, pairs=True)


def check_pairs(found: Any, threshold: float) -> None:
    """A pair is the best of its row and of its column; without ties, there is no other."""
    logs, paired = found.log_plan.double(), found.pairs >= 0
    tops = [logs == logs.amax(axis, keepdim=True) for axis in (-1, -2)]
    least = math.log(threshold) if threshold else -math.inf
    off = 4 * torch.finfo(found.plan.dtype).eps * max(1, -least if threshold else 1)
    best = tops[0] & tops[1] & (logs > least - off)
    chosen = best.gather(-1, found.pairs.clamp_min(0)[..., None]).squeeze(-1)
    ensure(chosen[paired].all(), "a pair is not mutually the best")
    sure = best & (tops[0].sum(-1, keepdim=True) == 1) & (tops[1].sum(-2, keepdim=True) == 1)
    ensure(paired[(sure & (logs > least + off)).any(-1)].all(), "a pair is missing")


def check_hard(call: Call, seed: int) -> None:
    """`hard_balance`: whole numbers that no linear program beats, with the gradient of a plan."""
    values = call.values()
    scores, (*batch, n, m) = values["scores"], values["scores"].shape
    plan = invoke(call, bistoch.hard_balance, **values)
    ensure(plan.shape == scores.shape and plan.dtype == scores.dtype, "a wrong shape or dtype")
    soft = without(values, "row_capacity", "column_capacity", "straight_through")
    given = scores_of(convert(soft | {"eps": 1.0}, working(scores.dtype), torch.float64))
    allowed, units = given > -math.inf, plan.double()
    ensure(((units >= 0) & (units == units.round()))[allowed].all(), "no whole numbers")
    ensure(not units[~allowed].any(), "a hidden pair has weight")
    rows = torch.as_tensor(values.get("row_capacity", 1)).expand(*batch, n) * allowed.any(-1)
    room = -(-rows.sum(-1, keepdim=True) // allowed.any(-2).sum(-1, keepdim=True).clamp_min(1))
    columns = torch.as_tensor(values.get("column_capacity", room)).expand(*batch, m)
    if not plan.numel() or peak(given.nan_to_num(0, 0, 0)) > 1e12:
        return
    flat = (x.reshape(-1, *x.shape[len(batch) :]) for x in (given, rows, columns, units))
    for matrix, row, column, own in zip(*flat, strict=True):
        count, total = best_assignment(matrix, row, column)
        while "column_capacity" not in values and round(count) < row.sum():
            # the least number of places that has room for all
            column = column + 1
            count, total = best_assignment(matrix, row, column)
        fits = (own.sum(-1) <= row).all() and (own.sum(-2) <= column).all()
        ensure(fits, "a row or a column has too many units")
        ensure(round(count) == own.sum(), f"{own.sum():g} units are placed, not {count:g}")
        gained = (own * matrix.nan_to_num(0, 0, 0)).sum()
        most = 1e-6 * (1 + abs(total) + peak(matrix.nan_to_num(0, 0, 0)))
        ensure(gained >= total - most, f"the sum of scores is {gained:g}, not {total:g}")
    if values.get("straight_through"):
        if "row_capacity" in values:
            soft["row_mass"] = torch.as_tensor(values["row_capacity"]).expand(*batch, n).double()
        if "column_capacity" in values:
            soft["column_mass"] = columns.clamp_min(1).double()
            soft["key_mask"] = values.get("key_mask", torch.tensor(True)) & (columns > 0)
        wanted = [name for name in floating(values) if name in ("scores", "mask", "eps")]
        found = gradients(lambda x: invoke(call, bistoch.hard_balance, **x), values, wanted)
        own = {"lam": 1.0, "omega": 1.0} | without(soft, *wanted)
        # the size of scores depends on eps, also where that is a number
        shaken = {name: values[name] for name in (*wanted, "iters", "eps") if name in values}
        if "mask" in values:
            shaken["mask"] = values["mask"]
        judge(
            found, lambda x: gradients(lambda y: elastic_oracle(own | y), x, wanted), shaken, True
        )


def check_potentials(call: Call, seed: int) -> None:
    """Potentials make the plan; what is said about convergence is true."""
    values, function = call.values(), evaluate(call.function)
    found = invoke(call, function, **values)
    iters, tol, (*batch, n, m) = values["iters"], values.get("tol"), shape_of(values)
    shapes = [list(field.shape) for field in found]
    ensure(shapes == [[*batch, n], [*batch, m], batch, batch, batch], f"shapes are {shapes}")
    allowed = allowed_pairs(values)
    sees, seen = allowed.any(-1), allowed.any(-2)
    ensure(torch.equal(found.row > -math.inf, sees), "a hidden row has a potential, or no other")
    ensure(torch.equal(found.column > -math.inf, seen), "a hidden column has one, or no other")
    potentials = torch.cat([found.row[sees], found.column[seen]])
    ensure(potentials.isfinite().all() and found.error.isfinite().all(), "not finite")
    stopped = found.iterations < iters
    ensure(((found.iterations >= 0) & (found.iterations <= iters)).all(), "too many iterations")
    ensure(not stopped.any() if tol is None else (found.error[stopped] <= tol).all(), "stops early")
    ensure(torch.equal(found.converged, found.error <= (tol or 1e-3)), "converged is wrong")
    doubles = convert(values, working(next(iter(values.values())).dtype), torch.float64)
    scores, column = scores_of(doubles), found.column.double()[..., None, :]
    logits = scores + column
    # by softmax, since the row potentials of large scores are rounded
    weight = doubles["row_mass"] if "row_mass" in values else torch.ones((), dtype=torch.float64)
    # and without what a row has in common, beside which column potentials are
    level = scores.amax(-1, keepdim=True).clamp_min(-torch.finfo(scores.dtype).max) if m else 0.0
    plan = (weight[..., None] * (scores - level + column).softmax(-1)).nan_to_num(0)
    plan = plan.to(found.row.dtype)
    judge({"plan": plan}, lambda x: {"plan": potentials_plan(function, x)}, values, pairs=True)
    off = peak((found.row.double() + logits.logsumexp(-1) - weight.log())[sees])
    size = terms_of(values) + sizes_of(values)["score"] + peak(potentials)
    most = torch.finfo(found.row.dtype).eps * 8 * size
    ensure(off <= most, f"row potentials do not make rows of one: off by {off:.3g}")


def potentials_plan(function: Callable, values: Values) -> Tensor:
    """The plan of potentials: by formula, or where steps are chosen by the reference."""
    if values.get("tol") is None and shape_of(values)[-1]:
        return elastic_oracle(values)
    found = quietly(function, values | {"backend": "reference"})
    scores = scores_of(values)
    if scores.shape[-1]:
        scores = scores - scores.amax(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    plan = (scores + found.column[..., None, :]).softmax(-1).nan_to_num(0)
    return plan * values["row_mass"][..., None] if "row_mass" in values else plan
