"""Every argument of every public function, with every wrong kind of value, ends in a sentence.

The sentence begins with the name of the function that was called and names the argument.
"""

import inspect

import pytest
import torch

import bistoch
from wrong_values import (
    BATCH,
    CHOICE,
    FLAG,
    GENERATOR,
    MASK,
    MASS,
    NOTHING,
    VARIANCE,
    D,
    E,
    N,
    boolean,
    count,
    find_silent,
    floating,
    number,
    option,
    tokens,
)

FUNCTIONS = {
    function.__name__: inspect.unwrap(function)
    for function in (
        *(part for row in bistoch.OPERATORS.values() for part in (row.attention, row.plan)),
        bistoch.elastic_potentials, bistoch.balance, bistoch.gumbel_balance,
        bistoch.balance_potentials, bistoch.log_balance, bistoch.match, bistoch.hard_balance,
        bistoch.prototype_codes,
        bistoch.causal_elastic_step, bistoch.delta_step, bistoch.wasserstein_moments,
    )
}  # fmt: skip


# arguments with a default that are needed all the same
NEEDED = {"match": {"row_price": 0.0}}


def legal(name):
    """Arguments that a function accepts: those without a default."""
    generator = torch.Generator().manual_seed(0)
    tokens = {
        "query": torch.randn(*BATCH, N, D, generator=generator),
        "key": torch.randn(*BATCH, N, D, generator=generator),
        "value": torch.randn(*BATCH, N, E, generator=generator),
        "value_variance": torch.rand(*BATCH, N, E, generator=generator),
        "scores": torch.randn(*BATCH, N, N, generator=generator),
    }
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    brought = {p.name: tokens[p.name] for p in parameters if p.default is p.empty}
    return brought | NEEDED.get(name, {})


STATE = {
    "number": 3,
    "text": "state",
    "tensor": torch.ones(3),
    "tuple of five": (1, 2, 3, 4, 5),
    "other batch": bistoch.causal_elastic_step(*torch.randn(3, 5, 2, D).unbind())[1],
    "too long": bistoch.causal_elastic_step(*torch.randn(3, *BATCH, N, D).unbind())[1],
}

PRICE = {k: v for k, v in option().items() if k not in {"nan tensor", "elsewhere"}} | {
    "nan tensor": torch.full((N,), torch.nan),
    "infinite tensor": torch.full((N,), torch.inf),
    "elsewhere": torch.ones(N, device="meta"),
}
CAPACITY = {
    "text": "3",
    "boolean": True,
    "fraction": 2.5,
    "list": [3],
    "negative": -1,
    "negative tensor": -torch.ones(N, dtype=torch.int64),
    "floats": torch.ones(N),
    "booleans": torch.ones(N, dtype=torch.bool),
    "other shape": torch.ones(13, dtype=torch.int64),
    "elsewhere": torch.ones(N, dtype=torch.int64, device="meta"),
}

# what is wrong only beside other tensors
LONELY = {"elsewhere", "other dtype", "other batch"}

# by the name of the argument
WRONG = {
    "query": tokens(D, features=torch.ones(*BATCH, N, D + 1)),
    "key": tokens(D, features=torch.ones(*BATCH, N, D + 1)),
    "value": tokens(E, length=torch.ones(*BATCH, N + 1, E)),
    "value_variance": {k: v for k, v in VARIANCE.items() if k != "other shape"} | NOTHING,
    "scores": {k: v for k, v in tokens(N).items() if k not in LONELY},
    "query_variance": VARIANCE,
    "key_variance": VARIANCE,
    "lam": option(-0.1, 1.1) | NOTHING,
    "eps": option(0.0, -1.0) | NOTHING,
    "omega": option(0.0, 2.0, -1.0),
    "shift": option(),
    "logit": option() | NOTHING,
    "tau": option(-1.0) | NOTHING,
    "tol": number(0.0, -1.0),
    "scale": number(),
    "noise": number(-1.0) | NOTHING,
    "prior": number(0.0, -1.0) | NOTHING,
    "ridge": number(0.0, -1.0) | NOTHING,
    "iters": count(-1) | NOTHING,
    "updates": count(-1, 0) | NOTHING,
    "block": count(-1, 0),
    "window": count(-1, 0) | NOTHING,
    "sink": count(-1) | NOTHING,
    "stride": count(-1, 0) | NOTHING,
    "tail": count(-1) | NOTHING,
    "rank": count(-1, 0),
    "coarse": count(-1, 0),
    "layers": count(-1) | NOTHING,
    "ancilla": count(-1) | NOTHING,
    "qubits": count(-1, 2),
    "shots": count(-1, 0),
    "mask": MASK,
    "query_mask": boolean(N),
    "key_mask": boolean(N),
    "bin_score": option(),
    "row_price": PRICE,
    "column_price": PRICE,
    "row_capacity": CAPACITY,
    "column_capacity": CAPACITY,
    "threshold": number(-0.1, 1.1) | NOTHING,
    "end": CHOICE,
    "column_mass": MASS,
    "row_mass": {k: v for k, v in MASS.items() if k != "zero"},
    "start": floating(N) | {"other shape": torch.ones(13), "nan": torch.full((N,), torch.nan)},
    "pivot_mass": MASS,
    "pivots": floating(16, D) | {"features": torch.ones(16, D + 1), "one axis": torch.ones(D),
                                 "none": torch.ones(0, D), "other batch": torch.ones(13, 16, D)},
    "directions": floating(16, D) | {"features": torch.ones(16, D + 1), "one axis": torch.ones(D),
                                     "none": torch.ones(0, D), "other batch": torch.ones(13, 2, D)},
    "theta": floating(64) | {"other shape": torch.ones(13), "no axes": torch.ones(())},
    "weight": floating(N, N) | {"other shape": torch.ones(13, 13), "one axis": torch.ones(N)},
    "state": STATE,
    "generator": GENERATOR,
    "debias": FLAG,
    "straight_through": FLAG,
    "backend": CHOICE,
    "method": CHOICE,
    "ansatz": CHOICE,
    "pad": CHOICE,
    "grid": {"a number": 4, "one axis": (4,), "four axes": (1, 2, 2, 1), "zero": (0, 4),
             "negative": (-2, 2), "a fraction": (2.0, 2), "too large": (1 << 40, 2)},
    "tiles": {"a number": 2, "one": (2,), "three": (1, 1, 1), "zero": (1, 0), "a text": ("a", 1),
              "nothing": None},
    "correction": CHOICE,
    "cache": CHOICE,
    "inner": CHOICE | {
        "no call": "softmax(",
        "no such option": "softmax(lam=1.0)",
        "feels other rows": "sinkhorn",
        "wrong option": "softmax(eps=0.0)",
        "wrong kind of option": "softmax(eps='x')",
    },
}  # fmt: skip

# what is legal for one function and not for others; by function or operator, then argument
LEGAL = {
    "sliced_attention": {"eps": {"0.0"}},
    "sliced_plan": {"eps": {"0.0"}},
}
# what is illegal for one function only
ALSO = {
    "monarch_attention": {"iters": {"none": 0}},
    "monarch_plan": {"iters": {"none": 0}},
    "elastic_monarch_attention": {"omega": NOTHING},
    "elastic_monarch_plan": {"omega": NOTHING},
    "orthogonal_attention": {"ancilla": {"none": 0}},
    "orthogonal_plan": {"ancilla": {"none": 0}},
    "causal_elastic_attention": {"block": NOTHING},
    "causal_elastic_plan": {"block": NOTHING},
    "causal_elastic_step": {"block": NOTHING},
}


def wrong_values(name, argument):
    values = WRONG[argument] | ALSO.get(name, {}).get(argument, {})
    allowed = LEGAL.get(name, {}).get(argument, set())
    return {label: value for label, value in values.items() if label not in allowed}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_wrong_argument_ends_in_a_sentence(name):
    function, arguments = FUNCTIONS[name], legal(name)
    function(**arguments)
    parameters = inspect.signature(function).parameters
    wrong = {argument: wrong_values(name, argument) for argument in parameters}
    silent = find_silent(function, name, arguments, wrong)
    assert not silent, "\n".join(["", *silent])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_unknown_argument_is_refused(name):
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        FUNCTIONS[name](**legal(name), nonsense=1)
