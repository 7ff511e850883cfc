"""Illegal calls, with one wrong argument: a sentence must name the function and the argument."""

import inspect
import random
import re
import warnings

import torch

import bistoch
from fuzz.call import Call, Found, evaluate

ALLOWED = (ValueError, TypeError, NotImplementedError, bistoch.BackendUnavailableError)

# nothing that takes a tensor or a number takes these
NOTHING = ("'word'", "[0.5]", "dict()", "object()", "1j", "torch.float32", "b'x'")
ARRAYS = ("np.ones((2, 3, 5, 7))", "np.float32(0.5) * np.ones(3)")
NUMBERS = (*NOTHING, "True", "nan", "inf", "-inf")
# of one entry per problem; the leading axes are (2, 3)
TENSORS = (
    "torch.tensor(1)", "torch.tensor(nan)", "torch.tensor([0.5, nan, 0.5])",
    "torch.full((4,), 0.5)", "torch.full((2, 3, 1), 0.5)", "torch.tensor(True)",
    "torch.tensor(0.5j)",
    "torch.full((3,), 0.5, device='meta')",
)  # fmt: skip
OPTION = (*NUMBERS, *ARRAYS, *TENSORS, "None")
COUNT = (*NOTHING, *ARRAYS, "-1", "1.5", "3.0", "True", "nan", "inf", "torch.tensor(3)", "None")
POSITIVE = (*NUMBERS, *ARRAYS, "0.0", "-1.0", "None", "torch.tensor(0.1)")
WORD = ("'nothing'", "''", "3", "None", "True", "['auto']", "b'auto'", "torch.zeros(())")
FLAG = ("'yes'", "None", "2", "torch.ones(2)")
TOKENS = (
    *NOTHING, *ARRAYS, "None", "3.0", "True", "torch.tensor(1.0)", "torch.zeros(3)",
    "torch.zeros(2, 3, 5, 4, dtype=torch.int64)", "torch.zeros(2, 3, 5, 4, dtype=torch.bool)",
    "torch.zeros(2, 3, 5, 4, dtype=torch.complex64)", "torch.nn.Linear(2, 2)",
    "(torch.zeros(5, 4), torch.zeros(5, 4))",
)  # fmt: skip
# beside other tokens: another dtype, device, leading axes
BESIDE = (
    "{}.double()", "{}.half()", "{}.to('meta')", "torch.zeros(4, *{}.shape[-3:])",
    "torch.zeros(2, 4, *{}.shape[-2:])",
)  # fmt: skip
WIDER, LONGER = "torch.nn.functional.pad({}, (0, 1))", "torch.nn.functional.pad({}, (0, 0, 0, 1))"


def given(values: tuple[str, ...]) -> tuple[str, ...]:
    """For arguments that may be left out, None is legal."""
    return tuple(value for value in values if value != "None")


def _masks(kind: str, shape: str, *others: str) -> tuple[str, ...]:
    made = (f"torch.ones({other}, dtype={kind})" for other in others)
    integers, away = f"torch.ones({shape}, dtype=torch.int64)", f"torch.ones({shape}, dtype={kind}"
    return (
        *NOTHING,
        "True",
        "3.0",
        "np.ones(7, bool)",
        "nan",
        integers,
        f"{away}, device='meta')",
        *made,
    )


def _matrix(shape: str, *others: str) -> tuple[str, ...]:
    made = (f"torch.ones({other})" for other in (*others, "()", "(4, 1, 5, 7)"))
    integers, away = (
        f"torch.ones({shape}, dtype=torch.int64)",
        f"torch.ones({shape}, device='meta')",
    )
    return (*NOTHING, *ARRAYS, "3.0", "True", "nan", integers, away, *made)


def _masses(count: int) -> tuple[str, ...]:
    values = (
        f"torch.ones({count}).index_fill(0, torch.tensor([1]), {x})"
        for x in ("0", "-1", "nan", "inf")
    )
    return (*_matrix(f"{count}", "9", f"4, 1, {count}"), *values)


BOOLEAN = "torch.bool"
ILLEGAL: dict[str, tuple[str, ...]] = {
    "query": (*TOKENS, *BESIDE, WIDER),
    "key": (*TOKENS, *BESIDE, WIDER),
    "value": (*TOKENS, *BESIDE, LONGER),
    "value_variance": (*TOKENS, LONGER, "-{}", "nan * {}"),
    "scores": TOKENS,
    "mask": _masks(BOOLEAN, "5, 5", "(6, 6)", "(4, 1, 5, 5)", "(1, 2, 3, 5, 5)", "8"),
    "query_mask": (*_masks(BOOLEAN, "5", "9", "(2, 5)", "(1, 2, 3, 5)"), "torch.ones(5)"),
    "key_mask": (*_masks(BOOLEAN, "5", "9", "(2, 5)", "(1, 2, 3, 5)"), "torch.ones(5)"),
    "column_mass": _masses(5),
    "pivot_mass": _masses(3),
    "query_variance": (
        *_matrix("5, 4", "(5, 3)", "(2, 5, 4)"),
        "-torch.ones(5, 4)",
        "torch.full((5, 4), nan)",
    ),
    "key_variance": (
        *_matrix("5, 4", "(5, 3)", "(2, 5, 4)"),
        "-torch.ones(5, 4)",
        "torch.full((5, 4), inf)",
    ),
    "directions": _matrix("3, 4", "(3, 5)", "(0, 4)", "4", "(2, 3, 4)"),
    "pivots": _matrix("3, 4", "(3, 5)", "(0, 4)", "4", "(2, 3, 4)"),
    "weight": _matrix("5, 5", "(5, 6)", "(6, 5)", "5", "(2, 5, 5)"),
    "theta": _matrix("64", "(63,)", "0"),
    "lam": (*OPTION, "-0.1", "1.5", "torch.tensor(2.0)", "torch.tensor([0.5, -0.1, 0.5])"),
    "eps": (*OPTION, "-1.0", "torch.tensor(-1.0)", "torch.tensor([0.5, inf, 0.5])"),
    "omega": (*given(OPTION), "0.0", "2.0", "-1.0", "torch.tensor(2.0)"),
    "tau": (*OPTION, "-1.0", "torch.tensor(-1.0)"),
    "logit": OPTION,
    "shift": given(OPTION),
    "iters": COUNT,
    "block": (*given(COUNT), "0"),
    "updates": (*COUNT, "0"),
    "window": COUNT,
    "sink": COUNT,
    "stride": (*COUNT, "0"),
    "tail": COUNT,
    "layers": COUNT,
    "ancilla": COUNT,
    "qubits": (*given(COUNT), "2"),
    "shots": (*given(COUNT), "0"),
    "rank": (*given(COUNT), "0"),
    "tol": given(POSITIVE),
    "prior": POSITIVE,
    "ridge": POSITIVE,
    "noise": (*NUMBERS, *ARRAYS, "-1.0", "None"),
    "scale": (*NUMBERS, *ARRAYS, "torch.zeros(3)"),
    "backend": WORD,
    "method": WORD,
    "ansatz": WORD,
    "correction": WORD,
    "pad": WORD,
    "inner": (*WORD, "'elastic'", "'softmax('", "'softmax(lam=1)'"),
    "debias": FLAG,
    "straight_through": FLAG,
    "generator": ("3", "'word'", "np.random.default_rng()", "torch.zeros(2)"),
    "state": ("3", "'word'", "(1, 2)", "torch.zeros(3)", "[]"),
    "bogus": ("1",),
}
FUNCTIONS = (
    *(f"{name}_{part}" for name in bistoch.OPERATORS for part in ("attention", "plan")),
    *(
        "balance",
        "gumbel_balance",
        "elastic_potentials",
        "causal_elastic_step",
        "wasserstein_moments",
    )
    * 4,
)
# illegal arguments of layers, refused when a layer is made or when it is called
HEADS, SHARE = (*COUNT, "0", "4"), (*NUMBERS, "-0.1", "1.5", "None")
UNIT, COLD = (*NUMBERS, "2.0"), (*NUMBERS, "0.0")
TEXTS = (*WORD, "'elastic(lam=2)'", "'elastic(bogus=1)'", "'elastic('", "'softmax(eps=0)'")
LAYERS = {
    "Attention": {"dim": HEADS, "heads": HEADS, "dropout": SHARE, "operator": TEXTS},
    "MultiheadAttention": {
        "embed_dim": HEADS, "num_heads": HEADS, "dropout": SHARE, "operator": TEXTS,
    },
    "Block": {"dim": HEADS, "heads": HEADS, "mlp": COUNT, "norm": WORD, "dropout": SHARE},
    "GaussianAttention": {"dim": HEADS, "heads": HEADS, "lam": UNIT, "eps": COLD, "iters": COUNT},
    "Elastic": {"lam": UNIT, "eps": COLD, "iters": COUNT, "backend": WORD, "learn": WORD},
    "CausalElastic": {"lam": UNIT, "block": (*COUNT, "0"), "learn": WORD},
    "Sinkhorn": {"eps": COLD, "iters": COUNT, "omega": UNIT, "tol": ("0.0", "'x'", "nan")},
    "Softmax": {"eps": COLD, "scale": NUMBERS},
    "Hard": {"iters": COUNT, "eps": COLD, "scale": NUMBERS},
    "Sink": {"logit": NUMBERS, "learn": WORD},
    "Mixing": {"tokens": (*given(COUNT), "0"), "lam": UNIT, "learn": WORD},
    "LowRank": {"rank": (*COUNT, "0"), "size": (*COUNT, "0")},
    "Quantum": {"ansatz": WORD, "layers": COUNT, "ancilla": COUNT, "learn": WORD},
}  # fmt: skip
MADE = {
    "Attention": {"dim": "6", "heads": "2"}, "Block": {"dim": "6", "heads": "2"},
    "MultiheadAttention": {"embed_dim": "6", "num_heads": "2"},
    "GaussianAttention": {"dim": "6", "heads": "2"}, "LowRank": {"size": "6"},
}  # fmt: skip


def illegal_call(seed: int) -> Call:
    """A legal call of a function or a layer with one illegal argument."""
    draw = random.Random(seed)
    if draw.random() < 0.15:
        kind = draw.choice([*LAYERS])
        name = draw.choice([*LAYERS[kind], "bogus"])
        bad = draw.choice((LAYERS[kind] | {"bogus": ("1",)})[name])
        return Call(f"bistoch.nn.{kind}", MADE.get(kind, {}) | {name: bad}, {}, {"argument": name})
    name = draw.choice(FUNCTIONS)
    shapes = {
        "query": (2, 3, 5, 4),
        "key": (2, 3, 5, 4),
        "value": (2, 3, 5, 3),
        "scores": (2, 3, 5, 5),
    }
    parameters = inspect.signature(inspect.unwrap(getattr(bistoch, name))).parameters
    needed = [p.name for p in parameters.values() if p.default is p.empty]
    arguments = {"value_variance": "torch.ones(2, 3, 5, 3)"}
    arguments = {
        n: arguments.get(n, f"normal({draw.randrange(999)}, {shapes.get(n)})") for n in needed
    }
    if "iters" in parameters:
        arguments["iters"] = "2"
    wrong = draw.choice([*parameters, "bogus"])
    if draw.random() < 0.02 and wrong in needed:
        del arguments[wrong]
    else:
        bad = draw.choice(ILLEGAL[wrong])
        arguments[wrong] = bad.replace("{}", arguments.get(wrong, ""))
    if wrong == "pivot_mass":
        arguments["rank"] = "3"
    return Call(f"bistoch.{name}", arguments, {}, {"argument": wrong})


def check_illegal(call: Call, seed: int) -> None:
    """The call ends in a sentence that names what was called and which argument is wrong."""
    values, function = call.values(), evaluate(call.function)
    names = [call.function.rpartition(".")[2]]
    wrong = call.notes["argument"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(**values)
            if isinstance(result, torch.nn.Module):
                # what a layer does not refuse when it is made, it refuses when it is called
                names += [f"{result._get_name()}_attention", "operator", "wasserstein_moments"]
                names += [n.lower() for n in names] + ["elastic_attention", "softmax_attention"]
                run_layer(result)
    except ALLOWED as error:
        sentence = str(error)
    except Exception as error:
        raise Found(f"{wrong}: {type(error).__name__}: {str(error)[:200]}") from error
    else:
        raise Found(f"{wrong}: accepted")
    if not any(re.match(rf"(\w+\.)*{name}\b", sentence) for name in names):
        raise Found(f"{wrong}: the sentence does not begin with {names[0]}: {sentence[:200]}")
    if not re.search(rf"\b{wrong}\b", sentence):
        raise Found(f"{wrong}: the sentence does not name it: {sentence[:200]}")


def run_layer(layer: torch.nn.Module) -> None:
    x = torch.ones(2, 5, 6)
    if isinstance(layer, bistoch.nn.GaussianAttention):
        layer(bistoch.Gaussian(x, x))
    elif isinstance(layer, bistoch.nn.Attention | bistoch.nn.Block):
        layer(x)
    else:
        layer(x, x, x)
