"""What attention and plans of every operator must keep."""

import random
from typing import Any

import torch
from torch import Tensor

from fuzz.agree import Results, Values, convert, peak, working
from fuzz.call import Call
from fuzz.exact import (
    LAST,
    exact_plan,
    plan_values,
    reference_plan,
    scores_of,
    shape_of,
    terms_of,
)
from fuzz.promises import ensure, floating, gradients, invoke, judge, operator_of, readings


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
