"""Every argument of every layer, with every wrong kind of value, ends in a sentence.

A layer speaks in its own name, or in that of the operator inside it.
"""

import inspect

import pytest
import torch

import bistoch
from bistoch import nn
from wrong_values import (
    BATCH,
    CHOICE,
    FLAG,
    MASK,
    NO_TENSOR,
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

DIM, HEADS = 12, 3
X = torch.randn(2, N, DIM)
COUNT = count(0, -1) | NOTHING
OPERATOR = {"nothing": None, "number": 3, "list": ["softmax"], "unknown": "nonsense",
            "unreadable": "softmax(",
            "function": bistoch.softmax_attention, "module": torch.nn.Linear(2, 2)}  # fmt: skip
SHARE = number(-0.1, 1.1) | NOTHING

CONSTRUCTORS = {
    nn.Attention: ({"dim": DIM, "heads": HEADS}, {
        "dim": COUNT | {"not divisible": DIM + 1}, "heads": COUNT | {"too many": DIM + 1},
        "operator": OPERATOR, "key_dim": count(0, -1), "value_dim": count(0, -1),
        "qkv_bias": FLAG, "out_bias": FLAG, "dropout": SHARE, "batch_first": FLAG,
    }),
    nn.MultiheadAttention: ({"embed_dim": DIM, "num_heads": HEADS}, {
        "embed_dim": COUNT | {"not divisible": DIM + 1}, "num_heads": COUNT,
        "dropout": SHARE, "bias": FLAG, "batch_first": FLAG, "operator": OPERATOR,
    }),
    nn.GaussianAttention: ({"dim": DIM, "heads": HEADS}, {
        "dim": COUNT | {"not divisible": DIM + 1}, "heads": COUNT,
    }),
    nn.Block: ({"dim": DIM, "heads": HEADS}, {
        "dim": COUNT | {"not divisible": DIM + 1}, "heads": COUNT, "operator": OPERATOR,
        "mlp": count(-1) | NOTHING, "norm": CHOICE, "dropout": SHARE,
    }),
    nn.Matcher: ({}, {
        "bin_score": number() | NOTHING, "eps": number(0.0, -1.0) | NOTHING, "learn_eps": FLAG,
        "iters": count(0, -1) | NOTHING, "end": CHOICE, "threshold": SHARE,
    }),
    nn.OrthoTrans: ({"length": 8}, {"length": COUNT}),
    nn.Router: ({"dim": DIM, "experts": 4}, {
        "dim": COUNT, "experts": COUNT, "top_k": COUNT | {"too many": 5},
        "lam": option(-0.1, 1.1) | NOTHING, "eps": option(0.0, -1.0) | NOTHING,
        "decay": number(-0.1, 1.0) | NOTHING,
        "iters": count(-1) | NOTHING, "capacity": number(0.0, -1.0),
    }),
    nn.Elastic: ({}, {"learn": CHOICE}),
    nn.Delta: ({}, {"decode": CHOICE}),
    nn.CausalElastic: ({}, {"learn": CHOICE}),
    nn.Sink: ({}, {"learn": CHOICE}),
    nn.Quantum: ({}, {"learn": CHOICE, "tokens": count(0, -1)}),
    nn.Mixing: ({"tokens": N}, {
        "learn": CHOICE, "tokens": count(0, -1), "keys": count(0, -1),
        "generator": {"number": 3, "text": "seed"}, "learn_lam": FLAG,
    }),
    nn.LowRank: ({"size": D}, {
        "size": COUNT, "rank": COUNT, "heads": count(0, -1), "learn_mass": FLAG,
    }),
}  # fmt: skip
# a parameter is made where its start is
START = {k: v for k, v in option(-0.1, 1.1).items() if k != "elsewhere"}
LEARNING = {
    nn.Elastic: {"lam": START},
    nn.CausalElastic: {"lam": START},
    nn.Sink: {"logit": {k: v for k, v in option().items() if k != "elsewhere"}},
    nn.Quantum: {"ansatz": CHOICE, "layers": count(-1) | NOTHING, "ancilla": count(-1) | NOTHING},
}


def name_of(kind):
    return kind.__name__


@pytest.mark.parametrize("kind", CONSTRUCTORS, ids=name_of)
def test_a_wrong_argument_of_a_constructor(kind):
    legal, wrong = CONSTRUCTORS[kind]
    kind(**legal)
    # the text of an operator is read by its own reader, in its own name
    silent = find_silent(kind, (kind.__name__, "operator"), legal, wrong)
    assert not silent, "\n".join(["", *silent])


@pytest.mark.parametrize("kind", LEARNING, ids=name_of)
def test_a_wrong_start_of_what_is_learned(kind):
    legal = {"learn": "head", "heads": HEADS}
    legal |= {"tokens": N} if kind is nn.Quantum else {}
    kind(**legal)
    wrong = LEARNING[kind] | {"heads": COUNT}
    silent = find_silent(kind, kind.__name__, legal, wrong)
    assert not silent, "\n".join(["", *silent])


@pytest.mark.parametrize("name", bistoch.OPERATORS)
def test_a_wrong_argument_of_an_operator_module(name):
    row = bistoch.OPERATORS[name]
    wrong_options = {"eps": option(-1.0), "iters": count(-1) | NOTHING, "backend": CHOICE}
    q, k, v = torch.randn(*BATCH, N, D), torch.randn(*BATCH, N, D), torch.randn(*BATCH, N, E)
    silent = []
    for part in ("attention", "plan"):
        brought = {"query": q, "key": k} | ({"value": v} if part == "attention" else {})

        def call(part=part, brought=brought, **options):
            masks = {k: options.pop(k) for k in ("mask", "query_mask", "key_mask") if k in options}
            given = brought | {k: options.pop(k) for k in brought if k in options}
            module = nn.operators.OperatorModule(row, **options)
            return (module if part == "attention" else module.plan)(**given, **masks)

        call()
        wrong = {k: v for k, v in wrong_options.items() if k in row.options()}
        wrong |= {"mask": MASK, "query_mask": boolean(N), "key_mask": boolean(N)}
        wrong |= {"query": tokens(D), "key": tokens(D)}
        if part == "attention":
            wrong["value"] = tokens(E)
        silent += find_silent(call, getattr(row, part).__name__, {}, wrong)
    assert not silent, "\n".join(["", *silent])


def sequences(**wrong):
    features = {"features": torch.ones(2, N, DIM + 1), "too many axes": torch.ones(1, 2, N, DIM)}
    return floating(2, N, DIM) | features | {"one axis": torch.ones(DIM)} | wrong


def layer_masks(**more):
    return {
        "mask": MASK | {"three axes": torch.ones(2, N, N, dtype=torch.bool)},
        "query_mask": boolean(2, N),
        "key_mask": boolean(2, N),
    } | more


@pytest.mark.parametrize("operator", ["softmax", "elastic", "causal_elastic", "sparsemax"])
@pytest.mark.parametrize("part", ["forward", "plan"])
def test_a_wrong_argument_of_attention(operator, part):
    layer = nn.Attention(DIM, HEADS, operator)
    call = layer if part == "forward" else layer.plan
    call(query=X)
    wrong = {"query": sequences() | NOTHING, "key": sequences()}
    wrong |= layer_masks(**{"value": sequences(length=torch.ones(2, N + 1, DIM))})
    if part == "plan":
        del wrong["value"]
    silent = find_silent(call, "Attention", {"query": X}, wrong)
    assert not silent, "\n".join(["", *silent])


def test_a_wrong_argument_of_multihead_attention():
    layer = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    legal = {"query": X, "key": X, "value": X}
    layer(**legal)
    wrong_mask = {k: v for k, v in boolean(N, N).items() if k != "floats"}
    padding = {k: v for k, v in boolean(2, N).items() if k != "floats"}
    wrong = {
        # a nested query has its own sentence
        "query": {k: x for k, x in sequences().items() if k != "jagged"} | NOTHING,
        "key": sequences() | NOTHING,
        "value": sequences(length=torch.ones(2, N + 1, DIM)) | NOTHING,
        "attn_mask": wrong_mask,
        "key_padding_mask": padding,
    }
    silent = find_silent(layer, "MultiheadAttention", legal, wrong)
    assert not silent, "\n".join(["", *silent])


def test_a_wrong_argument_of_gaussian_attention():
    layer = nn.GaussianAttention(DIM, HEADS)
    tokens = bistoch.Gaussian(X, X.square())
    layer(tokens)
    wrong = {
        "query": {k: bistoch.Gaussian(x, X.square()) for k, x in sequences().items()} | NO_TENSOR,
        "key": {k: bistoch.Gaussian(X, x) for k, x in sequences().items()} | NO_TENSOR,
    }
    silent = find_silent(layer, "GaussianAttention", {"query": tokens}, wrong | layer_masks())
    assert not silent, "\n".join(["", *silent])


@pytest.mark.parametrize("name", ["lam", "eps", "omega", "iters", "backend"])
def test_a_wrong_option_of_gaussian_attention(name):
    tokens = bistoch.Gaussian(X, X.square())
    values = {"lam": option(-0.1, 1.1), "eps": option(0.0), "omega": option(0.0), "backend": CHOICE,
              "iters": count(-1) | NOTHING}[name]  # fmt: skip

    def call(**options):
        return nn.GaussianAttention(DIM, HEADS, **options)(tokens)

    silent = find_silent(call, ("GaussianAttention", "wasserstein_moments"), {}, {name: values})
    assert not silent, "\n".join(["", *silent])


def test_a_wrong_argument_of_a_block():
    block = nn.Block(DIM, HEADS)
    block(X)
    wrong = {"x": sequences() | NOTHING, "mask": boolean(2, N)}
    silent = find_silent(block, "Block", {"x": X}, wrong)
    assert not silent, "\n".join(["", *silent])


def test_a_wrong_argument_of_orthotrans():
    fit = nn.OrthoTrans.fit
    series = torch.randn(50, 3)
    legal = {"series": series, "length": 8, "train_rows": 30}
    fit(**legal)
    rows = {k: v for k, v in floating(50, 3).items() if k != "elsewhere"}
    wrong = {
        "series": rows
        | NOTHING
        | {"nan": torch.full((50, 3), torch.nan), "one axis": series[:, 0]},
        "length": COUNT | {"too long": 40},
        "train_rows": COUNT | {"too many": 60},
    }
    silent = find_silent(fit, "OrthoTrans", legal, wrong)
    trans = fit(**legal)
    window = {k: v for k, v in floating(2, 8).items() if k != "elsewhere"}
    window |= {"nothing": None, "length": torch.ones(2, 9)}
    silent += find_silent(trans, "OrthoTrans", {}, {"x": window})
    silent += find_silent(trans.inverse, "OrthoTrans", {}, {"z": window})
    assert not silent, "\n".join(["", *silent])


def test_every_class_is_in_the_table():
    public = {kind for kind in vars(nn).values() if inspect.isclass(kind)}
    same = {nn.Hard, nn.Sinkhorn, nn.Softmax, nn.OperatorModule, nn.Routing}
    assert public - same == set(CONSTRUCTORS)
