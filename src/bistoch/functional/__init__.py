"""The mathematics: tensors in, tensors out; no parameters, no state, no files.

`OPERATORS` lists every way to build a plan. The table drives `bistoch.nn`, the tests, the command
line and the docs: adding an operator is one file, one row here, and one page in docs/operators.
"""

from types import MappingProxyType

from bistoch.functional._backend import BackendUnavailableError as BackendUnavailableError
from bistoch.functional._operator import Operator as Operator
from bistoch.functional._operator import check_options as check_options
from bistoch.functional._operator import parse_operator as parse_operator
from bistoch.functional.anneal import anneal_attention, anneal_plan
from bistoch.functional.delta import delta_attention, delta_plan
from bistoch.functional.elastic import BACKENDS as ELASTIC_BACKENDS
from bistoch.functional.elastic import ConvergenceWarning as ConvergenceWarning
from bistoch.functional.elastic import Potentials as Potentials
from bistoch.functional.elastic import balance as balance
from bistoch.functional.elastic import (
    elastic_attention,
    elastic_plan,
    sinkhorn_attention,
    sinkhorn_plan,
)
from bistoch.functional.elastic import elastic_potentials as elastic_potentials
from bistoch.functional.elastic_monarch import elastic_monarch_attention, elastic_monarch_plan
from bistoch.functional.gumbel import gumbel_balance as gumbel_balance
from bistoch.functional.hard import hard_attention, hard_plan
from bistoch.functional.monarch import monarch_attention, monarch_plan
from bistoch.functional.softmax import softmax_attention, softmax_plan

OPERATORS = MappingProxyType({
    "softmax": Operator(
        name="softmax",
        attention=softmax_attention,
        plan=softmax_plan,
        backends=("torch",),
        rows_exact=True,
        columns="free",
        differentiable=True,
        causal=True,
        order_free=True,
        source="Vaswani et al. 2017",
    ),
    "elastic": Operator(
        name="elastic",
        attention=elastic_attention,
        plan=elastic_plan,
        backends=ELASTIC_BACKENDS,
        rows_exact=True,
        columns="elastic",
        differentiable=True,
        causal=False,
        order_free=True,
        source="Chizat et al. 2016, as attention",
    ),
    "sinkhorn": Operator(
        name="sinkhorn",
        attention=sinkhorn_attention,
        plan=sinkhorn_plan,
        backends=ELASTIC_BACKENDS,
        rows_exact=True,
        columns="limit",
        differentiable=True,
        causal=False,
        order_free=True,
        source="Sander et al. 2022",
    ),
    "anneal": Operator(
        name="anneal",
        attention=anneal_attention,
        plan=anneal_plan,
        backends=("torch",),
        rows_exact=True,
        columns="limit",
        differentiable=True,
        causal=False,
        order_free=True,
        source="Chizat 2024",
    ),
    "hard": Operator(
        name="hard",
        attention=hard_attention,
        plan=hard_plan,
        backends=("scipy",),
        rows_exact=True,
        columns="exact",
        differentiable=False,
        causal=False,
        order_free=True,
        source="Kuhn 1955, through scipy",
    ),
    "monarch": Operator(
        name="monarch",
        attention=monarch_attention,
        plan=monarch_plan,
        backends=("torch",),
        rows_exact=True,
        columns="free",
        differentiable=True,
        causal=False,
        order_free=False,
        masks="padding",
        source="Yaras et al. 2025",
    ),
    "elastic_monarch": Operator(
        name="elastic_monarch",
        attention=elastic_monarch_attention,
        plan=elastic_monarch_plan,
        backends=("torch",),
        rows_exact=True,
        columns="elastic",
        differentiable=True,
        causal=False,
        order_free=False,
        masks="padding",
        source="this library, after Yaras et al. 2025",
    ),
    "delta": Operator(
        name="delta",
        attention=delta_attention,
        plan=delta_plan,
        backends=("torch",),
        rows_exact=True,
        nonnegative=False,
        columns="free",
        differentiable=True,
        causal=True,
        order_free=False,
        square=True,
        masks="padding",
        source="Willette et al. 2025",
    ),
})  # fmt: skip
