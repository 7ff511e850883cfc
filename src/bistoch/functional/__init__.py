"""The mathematics: tensors in, tensors out; no parameters, no state, no files.

`OPERATORS` lists every way to build a plan. The table drives the names of `bistoch`, `bistoch.nn`,
the tests, the command line and the docs: adding an operator is one file, one row here, and one page
in docs/operators.
"""

from types import MappingProxyType

from bistoch.functional._operator import Operator as Operator
from bistoch.functional._operator import check_options as check_options
from bistoch.functional._operator import parse_operator as parse_operator
from bistoch.functional._operator import read_call as read_call
from bistoch.functional.anneal import anneal_attention, anneal_plan
from bistoch.functional.backends import BackendUnavailableError as BackendUnavailableError
from bistoch.functional.causal import BACKENDS as CAUSAL_BACKENDS
from bistoch.functional.causal import CausalState as CausalState
from bistoch.functional.causal import causal_elastic_attention, causal_elastic_plan
from bistoch.functional.causal import causal_elastic_step as causal_elastic_step
from bistoch.functional.circuit import BACKENDS as CIRCUIT_BACKENDS
from bistoch.functional.delta import BACKENDS as DELTA_BACKENDS
from bistoch.functional.delta import delta_attention, delta_plan
from bistoch.functional.delta import delta_step as delta_step
from bistoch.functional.elastic import BACKENDS as ELASTIC_BACKENDS
from bistoch.functional.elastic import ConvergenceWarning as ConvergenceWarning
from bistoch.functional.elastic import Potentials as Potentials
from bistoch.functional.elastic import balance as balance
from bistoch.functional.elastic import balance_potentials as balance_potentials
from bistoch.functional.elastic import (
    elastic_attention,
    elastic_plan,
    sinkhorn_attention,
    sinkhorn_plan,
)
from bistoch.functional.elastic import elastic_potentials as elastic_potentials
from bistoch.functional.elastic import log_balance as log_balance
from bistoch.functional.elastic_monarch import elastic_monarch_attention, elastic_monarch_plan
from bistoch.functional.gumbel import gumbel_balance as gumbel_balance
from bistoch.functional.hard import hard_attention, hard_plan
from bistoch.functional.inputs import PaddingWarning as PaddingWarning
from bistoch.functional.lowrank import lowrank_attention, lowrank_plan
from bistoch.functional.matching import Match as Match
from bistoch.functional.matching import hard_balance as hard_balance
from bistoch.functional.matching import match as match
from bistoch.functional.mixing import mixing_attention, mixing_plan
from bistoch.functional.monarch import BACKENDS as MONARCH_BACKENDS
from bistoch.functional.monarch import monarch_attention, monarch_plan
from bistoch.functional.orthogonal import orthogonal_attention, orthogonal_plan
from bistoch.functional.prototypes import prototype_codes as prototype_codes
from bistoch.functional.quantum import quantum_attention, quantum_plan
from bistoch.functional.rowwise import (
    entmax_attention,
    entmax_plan,
    normsoftmax_attention,
    normsoftmax_plan,
    sigmoid_attention,
    sigmoid_plan,
    softpick_attention,
    softpick_plan,
    sparsemax_attention,
    sparsemax_plan,
)
from bistoch.functional.sink import sink_attention, sink_plan
from bistoch.functional.sliced import sliced_attention, sliced_plan
from bistoch.functional.softmax import softmax_attention, softmax_plan
from bistoch.functional.wasserstein import Gaussian as Gaussian
from bistoch.functional.wasserstein import wasserstein_attention, wasserstein_plan
from bistoch.functional.wasserstein import wasserstein_moments as wasserstein_moments

OPERATORS = MappingProxyType({
    "softmax": Operator(
        name="softmax",
        attention=softmax_attention,
        plan=softmax_plan,
        columns="free",
        causal=True,
        order_free=True,
        source="Vaswani et al. 2017",
        family="row-wise",
    ),
    "elastic": Operator(
        name="elastic",
        attention=elastic_attention,
        plan=elastic_plan,
        backends=ELASTIC_BACKENDS,
        columns="elastic",
        causal=False,
        order_free=True,
        source="Chizat et al. 2016, as attention",
        family="balanced",
    ),
    "sinkhorn": Operator(
        name="sinkhorn",
        attention=sinkhorn_attention,
        plan=sinkhorn_plan,
        backends=ELASTIC_BACKENDS,
        columns="limit",
        causal=False,
        order_free=True,
        source="Sander et al. 2022",
        family="balanced",
    ),
    "anneal": Operator(
        name="anneal",
        attention=anneal_attention,
        plan=anneal_plan,
        columns="limit",
        causal=False,
        order_free=True,
        source="Chizat 2024",
        family="balanced",
    ),
    "hard": Operator(
        name="hard",
        attention=hard_attention,
        plan=hard_plan,
        backends=("scipy",),
        columns="exact",
        differentiable=False,
        causal=False,
        order_free=True,
        source="Kuhn 1955, through scipy",
        family="balanced",
        longest=2048,
        exceptions={
            "identical keys": "a tie has no unique assignment",
        },
    ),
    "orthogonal": Operator(
        name="orthogonal",
        attention=orthogonal_attention,
        plan=orthogonal_plan,
        columns="exact",
        causal=False,
        order_free=False,
        source="Born et al. 2025",
        family="balanced",
        square=True,
        masks="padding",
        longest=1024,
        exceptions={
            "overflow": "scores of any size are made small",
            "identical keys": "the first of them takes their direction, the others share the rest",
        },
    ),
    "quantum": Operator(
        name="quantum",
        attention=quantum_attention,
        plan=quantum_plan,
        backends=CIRCUIT_BACKENDS,
        columns="exact",
        causal=False,
        order_free=False,
        source="Born et al. 2025",
        family="balanced",
        small={"qubits": 3, "layers": 1, "ancilla": 1},
        square=True,
        masks="padding",
        longest=64,
        exceptions={
            "overflow": "scores of any size are made small",
            "permutation": "scores are angles, and large ones turn round and round",
            "identical keys": "every score turns another part of the circuit",
        },
    ),
    "sliced": Operator(
        name="sliced",
        attention=sliced_attention,
        plan=sliced_plan,
        columns="exact",
        causal=False,
        order_free=True,
        source="Shahbazi et al. 2025",
        family="balanced",
        masks="padding",
        matrix_free=True,
        exceptions={
            "permutation": "a line sees one feature, in which all tokens but one are equal",
        },
    ),
    "wasserstein": Operator(
        name="wasserstein",
        attention=wasserstein_attention,
        plan=wasserstein_plan,
        backends=ELASTIC_BACKENDS,
        columns="elastic",
        causal=False,
        order_free=True,
        source="Fan et al. 2022, Erick et al. 2023",
        family="balanced",
    ),
    "causal_elastic": Operator(
        name="causal_elastic",
        attention=causal_elastic_attention,
        plan=causal_elastic_plan,
        backends=CAUSAL_BACKENDS,
        columns="streamed",
        causal=True,
        order_free=False,
        source="this library",
        family="balanced",
        small={"block": 4},
        square=True,
        exceptions={
            "permutation": "a causal plan is no permutation but the identity",
            "identical keys": "a causal row shares among the keys up to its own",
        },
    ),
    "monarch": Operator(
        name="monarch",
        attention=monarch_attention,
        plan=monarch_plan,
        backends=MONARCH_BACKENDS,
        columns="free",
        causal=False,
        order_free=False,
        masks="keys",
        source="Yaras et al. 2025",
        family="structured",
        small={"block": 3},
        matrix_free=True,
        exceptions={
            "permutation": "a Monarch matrix cannot be every permutation",
        },
    ),
    "elastic_monarch": Operator(
        name="elastic_monarch",
        attention=elastic_monarch_attention,
        plan=elastic_monarch_plan,
        backends=MONARCH_BACKENDS,
        columns="elastic",
        causal=False,
        order_free=False,
        masks="keys",
        source="this library, after Yaras et al. 2025",
        family="structured",
        small={"block": 3},
        matrix_free=True,
        exceptions={
            "permutation": "a Monarch matrix cannot be every permutation",
        },
    ),
    "lowrank": Operator(
        name="lowrank",
        attention=lowrank_attention,
        plan=lowrank_plan,
        backends=ELASTIC_BACKENDS,
        columns="elastic",
        causal=False,
        order_free=True,
        source="Shahbazi et al. 2025, glued exactly",
        family="structured",
        masks="padding",
        matrix_free=True,
        exceptions={
            "permutation": "what passes through pivots chosen without the tokens is smooth",
        },
    ),
    "delta": Operator(
        name="delta",
        attention=delta_attention,
        plan=delta_plan,
        backends=DELTA_BACKENDS,
        nonnegative=False,
        columns="free",
        causal=True,
        order_free=False,
        square=True,
        masks="keys",
        source="Willette et al. 2025",
        family="structured",
        small={"window": 2, "sink": 1, "stride": 3},
        matrix_free=True,
        exceptions={
            "permutation": "a causal plan is no permutation but the identity",
            "identical keys": "a causal row shares among the keys up to its own",
        },
    ),
    "mixing": Operator(
        name="mixing",
        attention=mixing_attention,
        plan=mixing_plan,
        backends=ELASTIC_BACKENDS,
        columns="elastic",
        causal=True,
        order_free=False,
        source="Yue et al. 2025, OLinear",
        family="structured",
        static=True,
        exceptions={
            "overflow": "scores of any size are made small",
            "permutation": "the plan does not look at the tokens",
            "identical keys": "the plan does not look at the tokens",
        },
    ),
    "sink": Operator(
        name="sink",
        attention=sink_attention,
        plan=sink_plan,
        backends=ELASTIC_BACKENDS,
        rows_exact=False,
        columns="free",
        causal=True,
        order_free=True,
        source="Agarwal et al. 2025, gpt-oss",
        family="row-wise",
        exceptions={
            "identical keys": "the sink takes its share, and more of a lower row",
        },
    ),
    "sigmoid": Operator(
        name="sigmoid",
        attention=sigmoid_attention,
        plan=sigmoid_plan,
        rows_exact=False,
        columns="free",
        causal=True,
        order_free=True,
        source="Ramapuram et al. 2024",
        family="row-wise",
        exceptions={
            "permutation": "a pair does not know that another one is better",
            "identical keys": "a weight depends on the level of its score",
        },
    ),
    "softpick": Operator(
        name="softpick",
        attention=softpick_attention,
        plan=softpick_plan,
        rows_exact=False,
        columns="free",
        causal=True,
        order_free=True,
        source="Zuhri et al. 2025",
        family="row-wise",
        exceptions={
            "identical keys": "a row with negative scores is empty",
        },
    ),
    "sparsemax": Operator(
        name="sparsemax",
        attention=sparsemax_attention,
        plan=sparsemax_plan,
        columns="free",
        causal=True,
        order_free=True,
        source="Martins, Astudillo 2016",
        family="row-wise",
    ),
    "entmax": Operator(
        name="entmax",
        attention=entmax_attention,
        plan=entmax_plan,
        columns="free",
        causal=True,
        order_free=True,
        source="Peters et al. 2019",
        family="row-wise",
    ),
    "normsoftmax": Operator(
        name="normsoftmax",
        attention=normsoftmax_attention,
        plan=normsoftmax_plan,
        columns="free",
        causal=True,
        order_free=True,
        source="Jiang et al. 2023",
        family="row-wise",
    ),
})  # fmt: skip

# the names of `bistoch`: the two functions of every row, and these
__all__ = sorted(
    {
        "OPERATORS", "BackendUnavailableError", "CausalState", "ConvergenceWarning", "Gaussian",
        "Match", "Operator", "PaddingWarning", "Potentials", "balance", "balance_potentials",
        "causal_elastic_step", "delta_step", "elastic_potentials", "gumbel_balance", "hard_balance",
        "log_balance", "match", "prototype_codes", "wasserstein_moments",
    }
    | {part.__name__ for row in OPERATORS.values() for part in (row.attention, row.plan)}
)  # fmt: skip
