"""From the text of an operator to its module."""

import inspect
from typing import Any, cast

from torch import nn

from bistoch.functional import OPERATORS, Operator, check_options, parse_operator
from bistoch.nn.causal import CausalElastic
from bistoch.nn.circuits import Quantum
from bistoch.nn.delta import Delta
from bistoch.nn.learned import Mixing, Sink
from bistoch.nn.operators import Elastic, Hard, OperatorModule, Sinkhorn, Softmax
from bistoch.nn.pivots import LowRank

# operators with a class of their own; every other row of the table is an OperatorModule
NAMED: dict[str, type[OperatorModule]] = {
    "softmax": Softmax,
    "sinkhorn": Sinkhorn,
    "elastic": Elastic,
    "causal_elastic": CausalElastic,
    "delta": Delta,
    "hard": Hard,
    "quantum": Quantum,
    "lowrank": LowRank,
    "mixing": Mixing,
    "sink": Sink,
}


def build_operator(
    operator: str | nn.Module, heads: int, size: int | None = None
) -> OperatorModule:
    """Make the operator of a layer with so many heads from its text; a module is taken as it is.

    Args:
        operator: "name" or "name(option=value, ...)" with a name of `bistoch.OPERATORS`, or a
            module with the call and the `plan` of `OperatorModule`, perhaps your own.
        heads: the number of heads, for options that have one value per head.
        size: the features of a head, for operators that own vectors of them.

    >>> build_operator("elastic(lam=0.5, iters=5)", heads=8)
    elastic(lam=0.5, iters=5)
    >>> build_operator("elastic(learn='head')", heads=8).lam.shape
    torch.Size([8])
    """
    if isinstance(operator, str):
        row, options = parse_operator(operator, OPERATORS)
        module = _build_row(row, options, {"heads": heads, "size": size})
    elif isinstance(operator, nn.Module) and hasattr(operator, "plan"):
        module = cast(OperatorModule, operator)
    else:
        raise TypeError(
            'operator: expected a text such as "elastic(lam=0.5)" or a module with a plan such as '
            f"bistoch.nn.Elastic(lam=0.5), but it is a {type(operator).__name__}"
        )
    made_for = getattr(module, "heads", None)
    if isinstance(made_for, int) and made_for != heads:
        raise ValueError(
            f"operator: {module!r} was made for {made_for} heads, but the layer has {heads}; "
            "give both the same number"
        )
    return module


def _build_row(
    row: Operator, options: dict[str, Any], layer: dict[str, int | None]
) -> OperatorModule:
    if row.name not in NAMED:
        return OperatorModule(row, **options)
    known = inspect.signature(NAMED[row.name]).parameters
    check_options(row.name, options, known)
    given = {name: value for name, value in layer.items() if name in known}
    return NAMED[row.name](**given | options)
