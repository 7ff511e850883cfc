"""What every legal call must keep; a promise that is not kept raises `Found`."""

import copy
import functools
import math
import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bistoch
from fuzz.agree import Results, Values, agree, convert, peak, working
from fuzz.call import Call, Found, evaluate, limits
from fuzz.exact import (
    LAST,
    allowed_pairs,
    elastic_oracle,
    exact_plan,
    leading_axes,
    plan_values,
    reference_plan,
    scores_of,
    sizes_of,
    terms_of,
)

# calls whose results were checked
counts: Counter = Counter()


def invoke(call: Call, function: Callable, /, *tokens: Any, **values: Any) -> Any:
    """A call that is counted, under the limits that were drawn."""
    counts["legal"] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", bistoch.ConvergenceWarning)
        with limits(**call.limits):
            return function(*tokens, **values)


def ensure(holds: Any, sentence: str) -> None:
    if not bool(holds):
        raise Found(sentence)


# operators of the table


def check_operator(call: Call, seed: int) -> None:
    """The laws of the table, agreement with what is exact, gradients, and neighbours."""
    choose = random.Random(seed)
    values = call.values()
    row = operator_of(call)
    query, key, value = values["query"], values["key"], values["value"]
    plan = invoke(call, row.plan, **plan_values(values))
    result = invoke(call, row.attention, **values)
    batch = leading_axes(values)
    ensure(plan.shape == (*batch, query.shape[-2], key.shape[-2]), "the plan has a wrong shape")
    ensure(
        result.shape == (*batch, query.shape[-2], value.shape[-1]), "the result has a wrong shape"
    )
    ensure(plan.dtype == result.dtype == query.dtype, "a result has another dtype than its query")
    check_plan(plan, values, row)
    if row.name == "hard":
        check_assignment(plan, result, values)
    else:
        check_agreement(call, row, plan, result, values)
    if choose.random() < 0.3:
        check_gradient(call, row, values)
    if choose.random() < 0.2 and result.numel():
        slot = tuple(choose.randrange(size) for size in batch)
        check_neighbours(call, row, values, result, slot)


def operator_of(call: Call) -> Any:
    name = call.function.removeprefix("bistoch.").removesuffix("_attention")
    return bistoch.OPERATORS[name]


def kind_of(row: Any) -> str:
    """How masks of an operator are read."""
    return "causal" if row.always_causal else "softmax" if row.name == "softmax" else "any"


def check_plan(plan: Tensor, values: Values, row: Any) -> None:
    """Finite; not negative; zero where hidden; rows of one, or of nothing if all is hidden."""
    ensure(plan.isfinite().all(), "the plan is not finite")
    ensure((plan >= 0).all() or not row.nonnegative, "the plan has a negative entry")
    allowed = allowed_pairs(values, plan.shape, kind_of(row))
    ensure(not plan[~allowed].any(), "a hidden pair has weight")
    # a row of delta is its own and parts of others, which may be empty where it is not
    if row.rows_exact and row.name != "delta":
        off = peak(plan.double().sum(-1) - allowed.any(-1).double())
        most = torch.finfo(plan.dtype).eps * 4 * (plan.shape[-1] + 4)
        ensure(off <= most, f"rows do not sum to one, but are off by {off:.3g}")


def check_agreement(call: Call, row: Any, plan: Tensor, result: Tensor, values: Values) -> None:
    """Plan and result are those of the exact plan; columns move if lam is above zero."""

    def again(values: Values) -> Results:
        plan = exact_plan(row.name, values)
        return {"plan": plan, "result": plan @ values["value"]}

    # one iteration more or less changes columns by the tolerance
    slack = 8 * (values.get("tol") or 0.0)
    agree(
        row.name, {"plan": plan, "result": result}, again, values, terms=terms_of(values, plan),
        sizes=sizes_of(values), slack=slack, pairs=plan.shape if row.masks == "any" else (),
    )  # fmt: skip


def check_assignment(plan: Tensor, result: Tensor, values: Values) -> None:
    """Ties have many best assignments: the result is that of the plan, which is one of the best."""
    ensure(((plan == 0) | (plan == 1)).all(), "an assignment has entries beside 0 and 1")
    off = peak(result.double() - plan.double() @ values["value"].double())
    most = 4 * torch.finfo(plan.dtype).eps * peak(values["value"])
    ensure(off <= most, f"the result is not that of the plan, but off by {off:.3g}")
    doubles = convert(values, working(plan.dtype), torch.float64)
    scale = 1.0 if values.get("scale") is None else values["scale"]
    scores = scale * doubles["query"] @ doubles["key"].mT
    mask = values.get("mask")
    if mask is None or mask.dtype == torch.bool:
        missed = ((reference_plan("hard", doubles) - plan.double()) * scores).sum((-1, -2))
        most = torch.finfo(working(plan.dtype)).eps * 8 * terms_of(values, plan) * peak(scores)
        ensure((missed <= most * plan.shape[-2]).all(), "the assignment is not the best one")


def gradients(function: Callable, values: Values, wanted: list[str]) -> Results:
    """Those of a fixed weighted sum of the result."""
    leaves = {name: values[name].detach().clone().requires_grad_() for name in wanted}
    result = function(values | leaves)
    # weights that every precision holds
    weights = (64 * torch.arange(result.numel()).cos()).round() / 64
    loss = (result * weights.to(result.dtype).reshape(result.shape)).sum()
    if not loss.requires_grad:
        return {f"gradient of {name}": torch.zeros_like(values[name]) for name in wanted}
    found = torch.autograd.grad(
        loss, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return {f"gradient of {name}": x for name, x in zip(wanted, found, strict=True)}


def check_gradient(call: Call, row: Any, values: Values) -> None:
    """Finite, of the dtype of their inputs, and those of the plan of the reference."""
    wanted = [name for name, x in values.items() if isinstance(x, Tensor) and x.is_floating_point()]
    wanted = wanted if row.differentiable else ["value"]
    found = gradients(lambda values: invoke(call, row.attention, **values), values, wanted)
    same = all(found[f"gradient of {name}"].dtype == values[name].dtype for name in wanted)
    ensure(same, "a gradient has another dtype than its input")
    if values.get("tol") is not None:
        # one iteration more or less is another gradient
        ensure(all(x.isfinite().all() for x in found.values()), "a gradient is not finite")
    elif row.differentiable:

        def again(values: Values) -> Results:
            return gradients(lambda x: reference_plan(row.name, x) @ x["value"], values, wanted)

        shape = (*leading_axes(values), values["query"].shape[-2], values["key"].shape[-2])
        agree(
            row.name, found, again, values, terms=4 * terms_of(values, torch.empty(shape)),
            sizes=sizes_of(values), pairs=shape if row.masks == "any" else (),
        )  # fmt: skip


def check_neighbours(
    call: Call, row: Any, values: Values, result: Tensor, slot: tuple[int, ...]
) -> None:
    """A slot of the batch alone has the result that it has among others."""

    def own(name: str, tensor: Tensor) -> Tensor:
        leading = tensor.ndim - LAST.get(name, 0)
        index = slot[len(slot) - leading :] if leading > 0 else ()
        return tensor[tuple(i if tensor.shape[axis] > 1 else 0 for axis, i in enumerate(index))]

    alone = {name: own(name, x) if isinstance(x, Tensor) else x for name, x in values.items()}
    found = invoke(call, row.attention, **alone)
    off = peak(found.double() - result[slot].double())
    if off > 4 * torch.finfo(result.dtype).eps * peak(values["value"]) and row.name != "hard":
        # both may be as far from the exact one as their precision allows
        plan = reference_plan(row.name, alone)
        check_agreement(call, row, plan, found, alone)


# other functions


def check_scores(call: Call, seed: int) -> None:
    """`balance` and `gumbel_balance` without noise are the elastic plan of scores."""
    values = call.values()
    function = evaluate(call.function)
    plan = invoke(call, function, **values)
    ensure(plan.shape == values["scores"].shape, "the plan has a wrong shape")
    ensure(plan.dtype == values["scores"].dtype, "the plan has another dtype than the scores")
    check_plan(plan, values, bistoch.OPERATORS["elastic"])
    known = {name: value for name, value in values.items() if name not in ("noise", "generator")}

    def reference(values: Values) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bistoch.ConvergenceWarning)
            return bistoch.balance(**values | {"backend": "reference"})

    def again(values: Values) -> Results:
        by_formula = values.get("tol") is None and plan.numel()
        return {"plan": elastic_oracle(values) if by_formula else reference(values)}

    judge = functools.partial(
        agree, call.function, terms=terms_of(known, plan), sizes=sizes_of(known), pairs=plan.shape
    )
    judge({"plan": plan}, again, known, slack=8 * (known.get("tol") or 0.0))
    if random.Random(seed).random() < 0.3 and known.get("tol") is None:
        wanted = [n for n, x in known.items() if isinstance(x, Tensor) and x.is_floating_point()]
        found = gradients(lambda known: invoke(call, function, **values | known), known, wanted)
        judge(found, lambda known: gradients(reference, known, wanted), known)


def check_potentials(call: Call, seed: int) -> None:
    """Potentials make the plan; what is said about convergence is true."""
    values = call.values()
    found = invoke(call, bistoch.elastic_potentials, **values)
    query, key, iters = values["query"], values["key"], values["iters"]
    batch, n, m = leading_axes(values), query.shape[-2], key.shape[-2]
    shapes = [tuple(field.shape) for field in found]
    ensure(shapes == [(*batch, n), (*batch, m), *[tuple(batch)] * 3], f"shapes are {shapes}")
    allowed = allowed_pairs(values, (*batch, n, m))
    ensure(torch.equal(found.row > -math.inf, allowed.any(-1)), "row potentials of hidden rows")
    ensure(torch.equal(found.column > -math.inf, allowed.any(-2)), "column potentials")
    potentials = torch.cat([found.row[allowed.any(-1)], found.column[allowed.any(-2)]])
    ensure(potentials.isfinite().all() and found.error.isfinite().all(), "potentials not finite")
    ensure(((found.iterations >= 0) & (found.iterations <= iters)).all(), "iterations out of range")
    tol = values.get("tol")
    stopped = found.iterations < iters
    ensure(tol is not None or not stopped.any(), "stopped without a tolerance")
    ensure(tol is None or (found.error[stopped] <= tol).all(), "stopped above the tolerance")
    ensure(torch.equal(found.converged, found.error <= (1e-3 if tol is None else tol)), "converged")

    def again(values: Values) -> Results:
        return {"plan": exact_plan("elastic", values)}

    doubles = convert(values, working(query.dtype), torch.float64)
    logits = scores_of(doubles) + found.column.double()[..., None, :]
    # by softmax, since the row potentials of large scores are rounded
    plan = logits.softmax(-1).nan_to_num(0)
    sizes = sizes_of(values)
    agree(
        "elastic_potentials", {"plan": plan.to(found.row.dtype)}, again, values,
        terms=terms_of(values, plan), sizes=sizes, slack=8 * (tol or 0.0), pairs=plan.shape,
    )  # fmt: skip
    off = peak((found.row.double() + logits.logsumexp(-1))[allowed.any(-1)])
    size = max(1.0, sizes["score"], peak(potentials))
    most = torch.finfo(found.row.dtype).eps * 8 * (terms_of(values, plan) + size)
    ensure(off <= most, f"row potentials do not make rows of one: off by {off:.3g}")


def check_moments(call: Call, seed: int) -> None:
    """`wasserstein_moments` are the plan and its square, times means and variances."""
    values = call.values()
    found = invoke(call, bistoch.wasserstein_moments, **values)

    def again(values: Values) -> Results:
        plan = reference_plan("wasserstein", without(values, "value_variance"))
        return {
            "mean": plan @ values["value"], "variance": plan.square() @ values["value_variance"]
        }  # fmt: skip

    same = found.mean.dtype == found.variance.dtype == values["query"].dtype
    ensure(same, "a moment has another dtype than its query")
    sizes = sizes_of(values) | {"variance": 4.0, "mean": peak(values["value"])}
    pairs = (*leading_axes(values), values["query"].shape[-2], values["key"].shape[-2])
    agree(
        "wasserstein_moments", found._asdict(), again, values, sizes=sizes, pairs=pairs,
        terms=terms_of(values, torch.empty(pairs)), slack=8 * (values.get("tol") or 0.0),
    )  # fmt: skip


def check_steps(call: Call, seed: int) -> None:
    """However a sequence is cut into steps, the rows are those of the whole."""
    values = call.values()
    n, cuts = values["query"].shape[-2], call.notes["cuts"]
    rows, state = [], None
    for first, last in zip([0, *cuts], [*cuts, n], strict=True):
        step = values | {"query": values["query"][..., first:last, :]}
        for name, axis in (("query_mask", -1), ("mask", -2)):
            if name in values and values[name].shape[axis] != 1:
                step[name] = values[name].narrow(axis, first, last - first)
        row, state = invoke(call, bistoch.causal_elastic_step, **step, state=state)
        rows.append(row)
    result = torch.cat(rows, -2)
    ensure(result.dtype == values["query"].dtype, "a step has another dtype than its query")

    def again(values: Values) -> Results:
        return {"result": reference_plan("causal_elastic", values) @ values["value"]}

    pairs = (*leading_axes(values), n, n)
    agree(
        "causal_elastic_step", {"result": result}, again, values, sizes=sizes_of(values),
        terms=terms_of(values, torch.empty(pairs)), pairs=pairs,
    )  # fmt: skip


def check_layer(call: Call, seed: int) -> None:
    """A layer is its projections around its plan; that of torch, if it is softmax."""
    values = call.values()
    made = evaluate(call.function)
    multihead = isinstance(made, bistoch.nn.MultiheadAttention)

    def run(layer: torch.nn.Module, values: Values, *, by_plan: bool) -> Results:
        query = values["query"]
        masks = without(values, "query")
        if not multihead and by_plan:
            split = (*query.shape[:-1], layer.heads, query.shape[-1] // layer.heads)
            heads = layer.plan(query, **masks) @ layer.value(query).reshape(split).transpose(-3, -2)
            return {"result": layer.out(heads.transpose(-3, -2).reshape(query.shape))}
        if not multihead:
            return {"result": invoke(call, layer, query, **masks)}
        mask, padding = values.get("mask"), values.get("key_mask")
        mask = ~mask if mask is not None and mask.dtype == torch.bool else mask
        padding = None if padding is None else ~padding
        masks = {"attn_mask": mask, "key_padding_mask": padding, "need_weights": by_plan}
        return {"result": invoke(call, layer, query, query, query, **masks)[0]}

    def again(values: Values) -> Results:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bistoch.ConvergenceWarning)
            return run(copy.deepcopy(made).to(values["query"].dtype), values, by_plan=True)

    found = run(made, values, by_plan=False)
    ensure(found["result"].shape == values["query"].shape, "a layer changes the shape")
    n = values["query"].shape[-2]
    # projections round what the operator sees
    agree(
        call.function,
        found,
        again,
        values,
        terms=8 * (2 * n + 30),
        sizes={"result": 4.0, "score": 8.0},
    )


def check_poisoned(call: Call, seed: int) -> None:
    """A number that is none shows in every row that depends on it, and in no other."""
    where, number = call.notes["where"], call.notes["number"]
    clean = call.values()
    if not clean[where].numel():
        return
    place = int(call.notes["place"] * clean[where].numel())
    call.arguments[where] = f"put({call.arguments[where]}, {place}, {number})"
    values, function = call.values(), evaluate(call.function)
    rows = _broken_rows(call, values, where)
    if "scores" in values:
        results = [invoke(call, function, **values)]
        before = [invoke(call, function, **clean)]
    else:
        row = operator_of(call)
        results, before = [invoke(call, function, **values)], [invoke(call, function, **clean)]
        if where != "value":
            results.append(invoke(call, row.plan, **plan_values(values)))
            before.append(invoke(call, row.plan, **plan_values(clean)))
    for found, usual in zip(results, before, strict=True):
        ensure(found[rows].isnan().all(), f"{number} in {where} does not show in a row it reaches")
        ensure(found[~rows].isfinite().all(), f"{number} in {where} shows in a row it cannot reach")
        others = ~rows.any(-1)
        ensure(torch.equal(found[others], usual[others]), f"{number} in {where} changes neighbours")


def _broken_rows(call: Call, values: Values, where: str) -> Tensor:
    """The rows that depend on what is not finite, by docs/nonfinite.md."""
    row = bistoch.OPERATORS["elastic"] if "scores" in values else operator_of(call)
    names = ("scores", "scores") if "scores" in values else ("query", "key")
    sizes = values[names[0]].shape[-2], values[names[1]].shape[-2 if names[1] == "key" else -1]
    shape = (*leading_axes(values), *sizes)
    broken = torch.zeros(shape, dtype=torch.bool)
    wrong = (
        ~(values[where] < math.inf) if where in ("mask", "scores") else ~values[where].isfinite()
    )
    if where in ("mask", "scores"):
        broken = broken | wrong
    elif where == "query":
        broken = broken | wrong.any(-1)[..., :, None]
    else:
        broken = broken | wrong.any(-1)[..., None, :]
    if row.static and where in ("query", "key"):
        broken = broken & False
    allowed = allowed_pairs(values, shape, kind_of(row))
    hit = (broken & allowed).any(-1)
    if row.always_causal:
        hit = hit.cumsum(-1) > 0
    elif not row.rows_stand_alone:
        hit = hit.any(-1, keepdim=True)
    return hit & allowed.any(-1)


def without(values: Values, *names: str) -> Values:
    return {name: value for name, value in values.items() if name not in names}
