"""Illegal calls, with one wrong argument: a sentence must name the function and the argument."""

import inspect
import random
import re
import warnings

import torch

import bistoch
from fuzz.call import Call, Found, evaluate

ALLOWED = (ValueError, TypeError, NotImplementedError, bistoch.BackendUnavailableError)


def each(*texts: str) -> tuple[str, ...]:
    """Expressions, written in a row with bars between them."""
    return tuple(part.strip() for text in texts for part in text.split("|"))


def given(values: tuple[str, ...], *others: str) -> tuple[str, ...]:
    """For arguments that may be left out, None is legal."""
    return (*(value for value in values if value != "None"), *others)


def ones(shape: str, *wrong: str, dtype: str = "torch.float32") -> tuple[str, ...]:
    """What is no tensor of this shape and dtype: another kind, dtype, device or shape."""
    return (
        *NOTHING, *ARRAYS, *each("True | 3.0 | nan"), f"torch.ones({shape}, dtype=torch.int64)",
        f"torch.ones({shape}, dtype={dtype}, device='meta')",
        *(f"torch.ones({other}, dtype={dtype})" for other in wrong),
    )  # fmt: skip


# nothing that takes a tensor or a number takes these
NOTHING = each("'word' | [0.5] | dict() | object() | 1j | torch.float32 | b'x'")
ARRAYS = each("np.ones((2, 3, 5, 7)) | np.float32(0.5) * np.ones(3)")
NUMBERS = (*NOTHING, *each("True | nan | inf | -inf"))
OPTION = (
    *NUMBERS, *ARRAYS, *each(
        "None | torch.tensor(1) | torch.tensor(nan) | torch.tensor([0.5, nan, 0.5])",
        # there is one number for each problem, and the leading axes are (2, 3)
        "torch.full((4,), 0.5) | torch.full((2, 3, 1), 0.5) | torch.tensor(True)",
        "torch.tensor(0.5j) | torch.full((3,), 0.5, device='meta')",
    ),
)  # fmt: skip
COUNT = (*NOTHING, *ARRAYS, *each("-1 | 1.5 | 3.0 | True | nan | inf | torch.tensor(3) | None"))
POSITIVE = (*NUMBERS, *ARRAYS, *each("0.0 | -1.0 | None | torch.tensor(0.1)"))
WORD = each("'nothing' | '' | 3 | None | True | ['auto'] | b'auto' | torch.zeros(())")
FLAG = each("'yes' | None | 2 | torch.ones(2)")
TOKENS = (
    *NOTHING, *ARRAYS, *each(
        "None | 3.0 | True | torch.tensor(1.0) | torch.zeros(3) | torch.nn.Linear(2, 2)",
        "torch.zeros(2, 3, 5, 4).long() | torch.zeros(2, 3, 5, 4).bool()",
        "torch.zeros(2, 3, 5, 4) * 1j | (torch.zeros(5, 4), torch.zeros(5, 4))",
    ),
)  # fmt: skip
# beside other tokens ({} is the legal one): another dtype, device, leading axes, or size
BESIDE = each(
    "{}.double() | {}.half() | {}.to('meta') | torch.zeros(4, *{}.shape[-3:])",
    "torch.zeros(2, 4, *{}.shape[-2:])",
)
WIDER, LONGER = "torch.nn.functional.pad({}, (0, 1))", "torch.nn.functional.pad({}, (0, 0, 0, 1))"
MASSES = "torch.ones({n}).index_fill(0, torch.tensor([1]), {x})"


def masses(n: int) -> tuple[str, ...]:
    bad = (MASSES.format(n=n, x=x) for x in ("0", "-1", "nan", "inf"))
    return (*ones(str(n), "9", f"4, 1, {n}", "()"), *bad)


PADDING = (*ones("5", "9", "2, 5", "1, 2, 3, 5", dtype="torch.bool"), "torch.ones(5)")
VARIANCE = (*ones("5, 4", "5, 3", "2, 5, 4", "()"), "-torch.ones(5, 4)", "nan * torch.ones(5, 4)")
PRICE = (
    *NUMBERS, *ARRAYS, *each("torch.ones(5).long() | torch.ones(9) | torch.ones(4, 1, 5)"),
    *each("torch.ones(5, device='meta') | torch.tensor(nan) | torch.tensor([0, 1, inf, 2, 3])"),
)  # fmt: skip
CAPACITY = (
    *NUMBERS, *ARRAYS, *each("-1 | 1.5 | torch.ones(5) | torch.ones(5) > 0 | 1j * torch.ones(5)"),
    *each("torch.ones(9).long() | torch.ones(4, 1, 5).long() | -torch.ones(5).long()"),
    "torch.ones(5, device='meta').long()",
)  # fmt: skip
VECTORS = ones("3, 4", "3, 5", "0, 4", "4", "2, 3, 4", "()")
ILLEGAL: dict[str, tuple[str, ...]] = {
    "query": (*TOKENS, *BESIDE, WIDER),
    "key": (*TOKENS, *BESIDE, WIDER),
    "value": (*TOKENS, *BESIDE, LONGER),
    "value_variance": (*TOKENS, LONGER, "-{}", "nan * {}"),
    "scores": TOKENS,
    "mask": ones("5, 5", "6, 6", "4, 1, 5, 5", "1, 2, 3, 5, 5", "8", dtype="torch.bool"),
    **dict.fromkeys(("query_mask", "key_mask"), PADDING),
    **{"column_mass": masses(5), "pivot_mass": masses(3)},
    # a query of mass zero is one that is not there
    "row_mass": tuple(bad for bad in masses(5) if bad != MASSES.format(n=5, x=0)),
    "start": (
        *ones("5", "9", "4, 1, 5", "()"),
        *(MASSES.format(n=5, x=x) for x in ("nan", "inf")),
    ),
    **dict.fromkeys(("query_variance", "key_variance"), VARIANCE),
    **dict.fromkeys(("directions", "pivots"), VECTORS),
    "weight": ones("5, 5", "5, 6", "6, 5", "5", "2, 5, 5", "()"),
    "theta": ones("64", "63", "0", "()"),
    "lam": (*OPTION, *each("-0.1 | 1.5 | torch.tensor(2.0) | torch.tensor([0.5, -0.1, 0.5])")),
    "eps": (*OPTION, *each("-1.0 | torch.tensor(-1.0) | torch.tensor([0.5, inf, 0.5])")),
    "omega": given(OPTION, *each("0.0 | 2.0 | -1.0 | torch.tensor(2.0)")),
    "tau": (*OPTION, "-1.0", "torch.tensor(-1.0)"),
    **{"logit": OPTION, "shift": given(OPTION)},
    **dict.fromkeys(("iters", "window", "sink", "tail", "layers", "ancilla"), COUNT),
    **dict.fromkeys(("updates", "stride"), (*COUNT, "0")),
    **dict.fromkeys(("block", "shots", "rank", "coarse"), given(COUNT, "0")),
    "qubits": given(COUNT, "2"),
    "grid": each("(2,) | (0, 5) | (2, 2.5) | (9, 9) | 3 | 'word' | torch.ones(2)"),
    "tiles": each("(2,) | (0, 1) | (1, 1.5) | (1, 1, 1) | 2 | 'word' | None | torch.ones(2)"),
    "tol": given(POSITIVE),
    **dict.fromkeys(("prior", "ridge"), POSITIVE),
    "noise": (*NUMBERS, *ARRAYS, "-1.0", "None"),
    "scale": (*NUMBERS, *ARRAYS, "torch.zeros(3)"),
    **dict.fromkeys(("backend", "method", "ansatz", "correction", "pad", "end"), WORD),
    "inner": (*WORD, *each("'elastic' | 'softmax(' | 'softmax(lam=1)'")),
    **dict.fromkeys(("debias", "straight_through"), FLAG),
    "generator": each("3 | 'word' | np.random.default_rng() | torch.zeros(2)"),
    "state": each("3 | 'word' | (1, 2) | torch.zeros(3) | []"),
    "bin_score": given(OPTION),
    **dict.fromkeys(("row_price", "column_price"), PRICE),
    **dict.fromkeys(("row_capacity", "column_capacity"), CAPACITY),
    "threshold": (*NUMBERS, *ARRAYS, *each("None | -0.1 | 1.5 | torch.tensor(0.5)")),
    "bogus": ("1",),
}
OTHERS = (
    "balance", "gumbel_balance", "elastic_potentials", "causal_elastic_step", "wasserstein_moments",
    "prototype_codes", "balance_potentials", "log_balance", "match", "hard_balance",
)  # fmt: skip
FUNCTIONS = (*(f"{n}_{part}" for n in bistoch.OPERATORS for part in ("attention", "plan")), *OTHERS)

# illegal arguments of layers, refused when a layer is made or when it is called
SIZE, SHARE = (*COUNT, "0", "4"), (*NUMBERS, "-0.1", "1.5", "None")
UNIT, COLD = (*NUMBERS, "2.0"), (*NUMBERS, "0.0")
TEXTS = (*WORD, *each("'elastic(lam=2)' | 'elastic(bogus=1)' | 'elastic(' | 'softmax(eps=0)'"))
HEADS = {"dim": SIZE, "heads": SIZE}
LAYERS: dict[str, dict[str, tuple[str, ...]]] = {
    "Attention": HEADS | {"dropout": SHARE, "operator": TEXTS},
    "MultiheadAttention": {"embed_dim": SIZE, "num_heads": SIZE, "operator": TEXTS},
    "Block": HEADS | {"mlp": COUNT, "norm": WORD, "dropout": SHARE},
    "GaussianAttention": HEADS | {"lam": UNIT, "eps": COLD, "iters": COUNT},
    "Elastic": {"lam": UNIT, "eps": COLD, "iters": COUNT, "backend": WORD, "learn": WORD},
    "CausalElastic": {"lam": UNIT, "block": (*COUNT, "0"), "learn": WORD},
    "Sinkhorn": {"eps": COLD, "iters": COUNT, "omega": UNIT, "tol": given(POSITIVE)},
    "Softmax": {"eps": COLD, "scale": NUMBERS},
    "Hard": {"iters": COUNT, "eps": COLD, "scale": NUMBERS},
    "Sink": {"logit": NUMBERS, "learn": WORD},
    "Mixing": {"tokens": given(COUNT, "0"), "lam": UNIT, "learn": WORD},
    "LowRank": {"rank": (*COUNT, "0"), "size": (*COUNT, "0")},
    "Quantum": {"ansatz": WORD, "layers": COUNT, "ancilla": COUNT, "learn": WORD},
}
MADE = {n: {"dim": "6", "heads": "2"} for n in ("Attention", "Block", "GaussianAttention")}
MADE |= {"MultiheadAttention": {"embed_dim": "6", "num_heads": "2"}, "LowRank": {"size": "6"}}


def illegal_call(seed: int) -> Call:
    """A legal call of a function or a layer with one illegal argument."""
    # not the numbers that chose the kind of this call: all illegal ones begin alike
    draw = random.Random(~seed)
    if draw.random() < 0.15:
        kind = draw.choice([*LAYERS])
        choices = LAYERS[kind] | {"bogus": ("1",)}
        wrong = draw.choice([*choices])
        arguments = MADE.get(kind, {}) | {wrong: draw.choice(choices[wrong])}
        return Call(f"bistoch.nn.{kind}", arguments, notes={"argument": wrong})
    name = draw.choice(FUNCTIONS if draw.random() < 0.7 else OTHERS)
    parameters = inspect.signature(inspect.unwrap(getattr(bistoch, name))).parameters
    shapes = {"value": (2, 3, 5, 3), "scores": (2, 3, 5, 5)}
    arguments = {
        n: f"normal({draw.randrange(999)}, {shapes.get(n, (2, 3, 5, 4))})"
        for n, parameter in parameters.items()
        if parameter.default is parameter.empty
    }
    if "value_variance" in arguments:
        arguments["value_variance"] = "torch.ones(2, 3, 5, 3)"
    wrong = draw.choice([*parameters, "bogus"])
    if wrong in arguments and draw.random() < 0.05:
        del arguments[wrong]
    else:
        bad = draw.choice(ILLEGAL[wrong])
        arguments[wrong] = bad.replace("{}", arguments.get(wrong, ""))
    if "iters" in parameters:
        arguments.setdefault("iters", "2")
    if name == "match" and wrong not in ("bin_score", "row_price", "column_price"):
        arguments["bin_score"] = "0.5"
    if wrong == "pivot_mass":
        arguments["rank"] = "3"
    return Call(f"bistoch.{name}", arguments, notes={"argument": wrong})


def check_illegal(call: Call, seed: int) -> None:
    """The call ends in a sentence that names what was called and which argument is wrong."""
    values, function, wrong = call.values(), evaluate(call.function), call.notes["argument"]
    names = [call.function.rpartition(".")[2]]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(**values)
            if isinstance(result, torch.nn.Module):
                # what a layer does not refuse when it is made, its operator refuses in its name
                names += [rf"{names[0].lower()}\w*", r"\w+_attention", "wasserstein_moments"]
                run_layer(result)
    except ALLOWED as error:
        sentence = str(error)
    except Exception as error:
        raise Found(f"{wrong}: {type(error).__name__}: {str(error)[:200]}") from error
    else:
        raise Found(f"{wrong}: accepted")
    if wrong == "operator":
        # a text is refused in the name of the argument or of the operator that it names
        names.append(r"\w+")
        wrong = r"\w+"
    elif wrong in ("dim", "embed_dim"):
        # tokens of another size are refused by their number of features
        wrong = f"({wrong}|features)"
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
