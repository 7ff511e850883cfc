"""Every argument of every metric, with every wrong kind of value, ends in a sentence."""

import inspect

import pytest
import torch

from bistoch.analysis import metrics
from wrong_values import (
    BATCH,
    CHOICE,
    FLAG,
    MASK,
    MASS,
    NOTHING,
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
    name: inspect.unwrap(function)
    for name, function in vars(metrics).items()
    if inspect.isfunction(function)
}


def numbers(*shape):
    """What is no floating-point tensor with so many axes; it stands alone on any device."""
    wrong = floating(*shape) | NOTHING | {"no axes": torch.ones(())}
    return {label: value for label, value in wrong.items() if label != "elsewhere"}


LEGAL = {
    "plan": torch.full((*BATCH, N, N), 1 / N),
    "states": torch.randn(*BATCH, N, D),
    "before": torch.randn(*BATCH, N, D),
    "after": torch.randn(*BATCH, N, D),
    "query": torch.randn(*BATCH, N, D),
    "key": torch.randn(*BATCH, N, D),
    "value": torch.randn(*BATCH, N, E),
    "sums": torch.rand(*BATCH, N),
    "load": torch.rand(*BATCH, N),
    "score": torch.rand(*BATCH, N),
    "ratio": torch.rand(*BATCH, N),
    "probabilities": torch.full((*BATCH, N, E), 1 / E),
    "target": torch.ones(*BATCH, N, dtype=torch.int64),
    "inside": torch.rand(*BATCH, N),
    "outside": torch.rand(*BATCH, N),
}
NOT_ALONE = {"other batch": torch.rand(5, N), "nan": torch.full((*BATCH, N), torch.nan)}
WRONG = {
    "plan": numbers(*BATCH, N, N) | {"one axis": torch.ones(N)},
    "states": numbers(*BATCH, N, D) | {"one axis": torch.ones(D)},
    "before": numbers(*BATCH, N, D) | {"one axis": torch.ones(D)},
    "after": numbers(*BATCH, N, D)
    | {"one axis": torch.ones(D), "other batch": torch.ones(5, N, D)},
    "query": tokens(D, features=torch.ones(*BATCH, N, D + 1)),
    "key": tokens(D, features=torch.ones(*BATCH, N, D + 1)),
    "value": numbers(*BATCH, N, E)
    | {"one axis": torch.ones(E), "length": torch.ones(*BATCH, N + 1, E)},
    "sums": numbers(*BATCH, N),
    "load": numbers(*BATCH, N),
    "score": numbers(*BATCH, N),
    "ratio": numbers(*BATCH, N),
    "probabilities": numbers(*BATCH, N, E)
    | {
        "one axis": torch.ones(E) / E,
        "scores": torch.randn(*BATCH, N, E),
        "sums": torch.ones(*BATCH, N, E),
        "nan": torch.full((*BATCH, N, E), torch.nan),
        "empty": torch.ones(*BATCH, 0, E),
    },
    "target": {
        "floats": torch.ones(*BATCH, N),
        "booleans": torch.ones(*BATCH, N, dtype=torch.bool),
        "other shape": torch.ones(N, dtype=torch.int64),
        "too large": torch.full((*BATCH, N), E),
        "negative": torch.full((*BATCH, N), -1),
        "elsewhere": torch.ones(*BATCH, N, dtype=torch.int64, device="meta"),
        "list": [[1]],
        "nothing": None,
    },
    "inside": numbers(*BATCH, N) | NOT_ALONE,
    "outside": numbers(*BATCH, N) | NOT_ALONE,
    "bins": count(0, -1) | NOTHING,
    "column": floating(*BATCH, N) | {"other shape": torch.ones(13)},
    "column_mass": MASS,
    "query_mask": boolean(N),
    "key_mask": boolean(N),
    "token_mask": boolean(N),
    "mask": MASK,
    "eps": option(0.0, -1.0) | NOTHING,
    "scale": number(),
    "threshold": number() | NOTHING,
    "iters": count(0, -1) | NOTHING,
    "position": count(N, -N - 1),
    "causal": FLAG,
    "norm": CHOICE,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_wrong_argument_ends_in_a_sentence(name):
    function = FUNCTIONS[name]
    parameters = inspect.signature(function).parameters
    arguments = {p.name: LEGAL[p.name] for p in parameters.values() if p.default is p.empty}
    function(**arguments)
    wrong = {argument: WRONG[argument] for argument in parameters}
    silent = find_silent(function, name, arguments, wrong)
    assert not silent, "\n".join(["", *silent])
