"""What every legal call must keep; a promise that is not kept raises `Found`."""

import copy
import math
import random
import warnings
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import bistoch
from fuzz.agree import HIDDEN, Results, Values, agree, convert, peak, working
from fuzz.call import Call, Found, evaluate, limits
from fuzz.exact import (
    LAST,
    allowed_pairs,
    best_assignment,
    codes_oracle,
    elastic_oracle,
    exact_plan,
    match_oracle,
    plan_values,
    quietly,
    reference_plan,
    scores_of,
    shape_of,
    sizes_of,
    terms_of,
)

# their rows are connected by columns alone, and columns by iterations
BY_COLUMNS = ("elastic", "sinkhorn", "wasserstein", "lowrank")

# calls whose results were checked
counts: Counter = Counter()


def invoke(call: Call, function: Callable, /, *tokens: Any, **values: Any) -> Any:
    """A call that is counted, under the limits that were drawn."""
    counts["legal"] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", bistoch.ConvergenceWarning)
        warnings.simplefilter("ignore", bistoch.PaddingWarning)
        with limits(**call.limits):
            return function(*tokens, **values)


def ensure(holds: Any, sentence: str) -> None:
    if not bool(holds):
        raise Found(sentence)


def judge(found: Results, again: Callable[[Values], Results], values: Values, pairs: bool) -> None:
    """Compare results with what is exact; with a tolerance, iterations may differ by one."""
    shape, tol = shape_of(values), values.get("tol") or 0.0
    agree(
        found, again, values, terms=terms_of(values), sizes=sizes_of(values), slack=8 * tol,
        pairs=shape if pairs else (),
    )  # fmt: skip


# operators of the table


def operator_of(call: Call) -> Any:
    name = call.function.removeprefix("bistoch.").removesuffix("_attention")
    name = "hard" if name == "hard_balance" else name
    return bistoch.OPERATORS[name if name in bistoch.OPERATORS else "elastic"]


def readings(row: Any, values: Values) -> tuple[Tensor, Tensor]:
    """Pairs that are allowed however a low bias is read, and pairs that may be."""
    if row.always_causal:
        allowed = allowed_pairs(values, "causal")
        if row.masks == "padding":
            # query t and key t are one token: a mask that hides the one hides the other
            allowed = allowed & allowed.diagonal(dim1=-2, dim2=-1)[..., None]
        return allowed, allowed
    if row.name == "softmax":
        return (allowed_pairs(values, "loose"),) * 2
    if row.rows_stand_alone:
        return (allowed_pairs(values, "strict"),) * 2
    return allowed_pairs(values, "strict"), allowed_pairs(values, "loose")


def check_operator(call: Call, seed: int) -> None:
    """The laws of the table, agreement with what is exact, gradients, and neighbours."""
    choose, row, values = random.Random(seed), operator_of(call), call.values()
    plan = invoke(call, row.plan, **plan_values(values))
    result = invoke(call, row.attention, **values)
    shape = shape_of(values)
    ensure(plan.shape == shape, "the plan has a wrong shape")
    ensure(result.shape == (*shape[:-1], values["value"].shape[-1]), "the result has a wrong shape")
    dtypes = {plan.dtype, result.dtype, values["query"].dtype}
    ensure(len(dtypes) == 1, "a result has another dtype than its query")
    check_plan(plan, values, row)
    if row.name == "hard":
        check_assignment(plan, result, values)
    else:
        check_agreement(row, {"plan": plan, "result": result}, values)
    if choose.random() < 0.3:
        check_gradient(call, row, values)
    if choose.random() < 0.2 and result.numel():
        check_neighbours(call, row, values, result, choose)
    if choose.random() < 0.05:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            same = torch.equal(invoke(call, row.attention, **values), result)
        ensure(same, "autocast changes the result")


def check_plan(plan: Tensor, values: Values, row: Any) -> None:
    """Finite; not negative; zero where hidden; rows of one, or of nothing if all is hidden."""
    ensure(plan.isfinite().all(), "the plan is not finite")
    ensure((plan >= 0).all() or not row.nonnegative, "the plan has a negative entry")
    allowed, perhaps = readings(row, values)
    ensure(not plan[~perhaps].any(), "a hidden pair has weight")
    # a row of delta is its own and parts of others, which may be empty where it is not
    if row.rows_exact and row.name != "delta":
        # where a low bias may hide all that a row sees, it is a row of one or of nothing
        weight = values.get("row_mass")
        sums, sure = plan.double().sum(-1), allowed.any(-1) == perhaps.any(-1)
        sums = sums if weight is None else sums / weight.double()
        off = peak(sums - torch.where(sure, allowed.any(-1), sums > 0.5).double())
        most = torch.finfo(plan.dtype).eps * 4 * (plan.shape[-1] + 4)
        ensure(off <= most, f"rows do not sum to one, but are off by {off:.3g}")


def check_agreement(row: Any, found: Results, values: Values) -> None:
    """Plan and result are those of the exact plan: also, columns move if lam is above zero."""

    def again(values: Values) -> Results:
        plan = exact_plan(row.name, values)
        return {"plan": plan, "result": plan @ values["value"]}

    judge(found, again, values, row.masks == "any")


def check_assignment(plan: Tensor, result: Tensor, values: Values) -> None:
    """Ties have many best assignments: the result is that of the plan, which is one of the best."""
    ensure(((plan == 0) | (plan == 1)).all(), "an assignment has entries beside 0 and 1")
    off = peak(result.double() - plan.double() @ values["value"].double())
    most = 4 * torch.finfo(plan.dtype).eps * peak(values["value"])
    ensure(off <= most, f"the result is not that of the plan, but off by {off:.3g}")
    if values.get("mask") is None or values["mask"].dtype == torch.bool:
        doubles = convert(values, working(plan.dtype), torch.float64)
        scores = scores_of(
            doubles | {"mask": None, "query_mask": None, "key_mask": None, "eps": 1.0}
        )
        missed = ((reference_plan("hard", doubles) - plan.double()) * scores).sum((-1, -2))
        most = torch.finfo(working(plan.dtype)).eps * 8 * terms_of(values) * peak(scores)
        ensure((missed <= most * plan.shape[-2]).all(), "the assignment is not the best one")


def gradients(
    function: Callable[[Values], Tensor], values: Values, wanted: list[str], **limited: int
) -> Results:
    """Those of a fixed weighted sum of the result, under the limits of the forward."""
    leaves = {name: values[name].detach().clone().requires_grad_() for name in wanted}
    result = function(values | leaves)
    # weights that every precision holds
    weights = (64 * torch.arange(result.numel()).cos()).round() / 64
    loss = (result * weights.to(result.dtype).reshape(result.shape)).sum()
    found = [torch.zeros_like(leaf) for leaf in leaves.values()]
    if loss.requires_grad:
        inputs = [*leaves.values()]
        with limits(**limited):
            found = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
    return {f"gradient of {name}": x for name, x in zip(wanted, found, strict=True)}


def check_gradient(call: Call, row: Any, values: Values) -> None:
    """Finite, of the dtype of their inputs, and those of the plan of the reference."""
    wanted = floating(values) if row.differentiable else ["value"]
    found = gradients(
        lambda values: invoke(call, row.attention, **values), values, wanted, **call.limits
    )
    same = all(found[f"gradient of {name}"].dtype == values[name].dtype for name in wanted)
    ensure(same, "a gradient has another dtype than its input")
    if values.get("tol") is not None:
        # one iteration more or less is another gradient, and half precision does not hold them all
        finite = all(
            (~x.isnan() if x.itemsize == 2 else x.isfinite()).all() for x in found.values()
        )
        ensure(finite, "a gradient is not finite")
    elif row.differentiable:

        def again(values: Values) -> Results:
            return gradients(lambda x: reference_plan(row.name, x) @ x["value"], values, wanted)

        judge(found, again, values, row.masks == "any")


def floating(values: Values) -> list[str]:
    """Arguments that have a gradient; a bias that is cut to the range of its precision has none."""
    tokens = values["scores" if "scores" in values else "query"]
    most = torch.finfo(working(tokens.dtype)).max
    names = [name for name, x in values.items() if isinstance(x, Tensor) and x.is_floating_point()]
    return [n for n in names if peak(values[n][values[n].isfinite()].double()) <= most]


def check_neighbours(
    call: Call, row: Any, values: Values, result: Tensor, choose: random.Random
) -> None:
    """A slot of the batch alone has the result that it has among others."""
    slot = tuple(choose.randrange(size) for size in result.shape[:-2])

    def own(name: str, tensor: Tensor) -> Tensor:
        leading = max(tensor.ndim - LAST.get(name, 0), 0)
        index = zip(slot[len(slot) - leading :], tensor.shape, strict=False)
        return tensor[tuple(0 if size == 1 else place for place, size in index)]

    alone = {name: own(name, x) if isinstance(x, Tensor) else x for name, x in values.items()}
    found = invoke(call, row.attention, **alone)
    off = peak(found.double() - result[slot].double())
    if off > 4 * torch.finfo(result.dtype).eps * peak(values["value"]) and row.name != "hard":
        # both may be as far from the exact one as their precision allows
        check_agreement(row, {"result": found}, alone)


# other functions


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
        shaken = {name: values[name] for name in (*wanted, "iters")}
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


def without(values: Values, *names: str) -> Values:
    return {name: value for name, value in values.items() if name not in names}
