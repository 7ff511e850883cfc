"""Legal calls: every operator, option, dtype, mask, layout and size, down to nothing at all."""

import inspect
import random
from collections.abc import Callable

import bistoch
from fuzz.call import DTYPES, Call

SIZES = (0, 1, 1, 2, 3, 3, 5, 5, 7, 7, 11, 13, 17)
LARGE = (67, 101, 131, 211, 307)
BATCHES = ((), (), (1,), (2,), (3,), (2, 3), (1, 2), (0,), (2, 0))
# no mask of pairs, but one that is the same for all queries
SHARED_MASK = ("monarch", "elastic_monarch", "delta")
# as many real queries as real keys
EQUAL_PADDING = ("orthogonal", "quantum")


class Draw:
    """The choices of one call: sizes first, then whatever is asked for, always as text."""

    def __init__(self, seed: int, *, longest: int = 1000, square: bool = False):
        self.random = random.Random(seed)
        self.large = longest > max(LARGE) and self.chance(0.02)
        sizes = LARGE if self.large else [size for size in SIZES if size <= longest]
        self.n = self.pick(*sizes)
        self.m = self.n if square else self.pick(*sizes)
        self.d, self.e = self.pick(0, 1, 2, 3, 5, 8), self.pick(0, 1, 3, 5)
        self.batch = self.pick((), (1,), (2,), (3,)) if self.large else self.pick(*BATCHES)
        self.dtype = self.pick(*DTYPES)

    def pick(self, *choices):
        return self.random.choice(choices)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def seed(self) -> int:
        return self.random.randrange(1 << 30)

    def any_dtype(self) -> str:
        return self.pick(self.dtype, *DTYPES)

    def axes(self, *last: int) -> tuple[int, ...]:
        """A shape that broadcasts to the leading axes and these: some are one or left out."""
        leading = self.batch
        if self.chance(0.5):
            leading = tuple(1 if self.chance(0.4) else size for size in leading)
            leading = leading[self.random.randint(0, len(leading)) if self.chance(0.4) else 0 :]
        return (*leading, *last)

    def tensor(self, text: str) -> str:
        return f"spaced({text})" if self.chance(0.2) else text

    def normal(self, *last: int) -> str:
        return self.tensor(f"normal({self.seed()}, {self.axes(*last)}, {self.dtype!r})")

    def positive(self, *last: int) -> str:
        return f"between({self.seed()}, {self.axes(*last)}, 0.1, 10.0, {self.any_dtype()!r})"

    def variance(self, *last: int) -> str:
        return f"between({self.seed()}, {last}, 0.0, 4.0, {self.dtype!r})"

    def tokens(self, length: int, features: int, size: float, whole: bool) -> str:
        shape = (*self.batch, length, features) if whole else self.axes(length, features)
        text = self.tensor(f"normal({self.seed()}, {shape}, {self.dtype!r}, {size})")
        if self.chance(0.05):
            # ties
            return f"{text}.round()"
        if self.chance(0.05) and length > 1:
            return f"{text}[..., [i // 2 for i in range({length})], :]"
        return text

    def option(self, low: float, high: float, *ends: float) -> str:
        """A number, or a tensor of any precision that broadcasts to the leading axes."""
        if ends and self.chance(0.4):
            return repr(self.pick(*ends))
        if self.chance(0.5):
            part = self.random.uniform(0.02, 0.98)
            return f"{low * (high / low) ** part if low > 0 else low + (high - low) * part:.4g}"
        return f"between({self.seed()}, {self.axes()}, {low}, {high}, {self.any_dtype()!r})"

    def mask(self, *, shared: bool = False) -> str:
        """A boolean mask or a bias, over pairs or the same for all queries."""
        n = 1 if shared or self.chance(0.15) else self.n
        shape = self.axes(n, self.m if self.chance(0.9) else 1)
        hidden = f"coins({self.seed()}, {shape}, {self.pick(0.0, 0.2, 0.2, 0.6, 1.0)})"
        if self.chance(0.4):
            return self.tensor(f"{hidden}.logical_not()" + ".tril()" * self.chance(0.2))
        dtype = self.any_dtype()
        # what users write for "hidden", as far as the dtype of the bias holds it
        low = self.pick("-inf", "-inf", "-1e4", "-1e5", "-1e9", "float16", self.dtype, dtype)
        if dtype == "float16" and low in ("-1e5", "-1e9"):
            low = "-6e4"
        if low in DTYPES:
            narrow = min(low, dtype, key=("float16", "bfloat16", "float32", "float64").index)
            low = f"torch.finfo(torch.{narrow}).min"
        bias = f"normal({self.seed()}, {shape}, {dtype!r}, {self.pick(1.0, 1.0, 10.0)})"
        return self.tensor(f"{bias}.masked_fill({hidden}, {low})")

    def padding(self, length: int) -> str:
        return f"coins({self.seed()}, {self.axes(length)}, {self.pick(0.0, 0.5, 0.8, 0.8, 1.0)})"

    def price(self, length: int) -> str:
        number = self.pick("0.0", "1.5", "-20.0", f"torch.tensor({self.random.uniform(-3, 3):.4g})")
        return number if self.chance(0.5) else self.normal(length)

    def capacity(self, length: int) -> str:
        some = f"normal({self.seed()}, {self.axes(length)}).abs().mul(1.5).long()"
        return self.pick("0", "1", "1", "2", "5") if self.chance(0.4) else some

    def limits(self) -> dict[str, int]:
        """Often the usual ones; else so small that every strategy of every kernel is taken."""
        drawn = {"threads": 2 if self.chance(0.1) else 1}
        if self.large or self.chance(0.2):
            choices = {
                "WORKSPACE_BYTES": (0, 1 << 16), "OWN_HEAD_BYTES": (0,), "BLOCK_BYTES": (1 << 12,),
                "TILE_ELEMENTS": (1, 64, 1 << 12), "LARGEST": (0,), "SMALL_HEAD": (0,), "FEW": (0,),
            }  # fmt: skip
            drawn |= {
                name: self.pick(*sizes) for name, sizes in choices.items() if self.chance(0.4)
            }
        return drawn


# how every option of every operator is drawn
OPTIONS: dict[str, Callable[[Draw], str]] = {
    "lam": lambda draw: draw.option(0.0, 1.0, 0.0, 1.0, 1.0),
    "eps": lambda draw: draw.option(*draw.pick((0.3, 3.0), (0.3, 3.0), (0.01, 1.0), (1e-4, 1e-3))),
    "omega": lambda draw: draw.option(0.1, 1.9, 1.0),
    "iters": lambda draw: draw.pick("0", "1", "2", "3", "5", "5", "10", "20"),
    "tol": lambda draw: draw.pick("None", "0.1", "0.001"),
    "column_mass": lambda draw: draw.positive(draw.m),
    "row_mass": lambda draw: draw.positive(draw.n),
    "start": lambda draw: draw.normal(draw.m),
    "scale": lambda draw: draw.pick("None", "1.0", "0.3", "-0.5", "0", "2"),
    "backend": lambda draw: draw.pick("'auto'", "'reference'", "'streaming'", "'cpu'", "'cpu'"),
    "block": lambda draw: draw.pick("1", "2", "3", "5", "16", "64"),
    "prior": lambda draw: f"{10 ** draw.random.uniform(-6, 1):.3g}",
    "debias": lambda draw: draw.pick("True", "False"),
    "straight_through": lambda draw: draw.pick("True", "False"),
    "method": lambda draw: draw.pick("'qr'", "'lq'", "'cayley'", "'expm'"),
    "ancilla": lambda draw: draw.pick("1", "2"),
    "ridge": lambda draw: draw.pick("0.0001", "0.01"),
    "theta": lambda draw: "None",
    "ansatz": lambda draw: draw.pick("'simple'", "'parted'", "'centrosymmetric'", "'trotter'"),
    "layers": lambda draw: draw.pick("0", "1", "2"),
    "qubits": lambda draw: draw.pick("None", "3"),
    "shots": lambda draw: "None",
    "generator": lambda draw: "None",
    "tau": lambda draw: draw.option(0.1, 3.0, 0.0, 1.0),
    "directions": lambda draw: draw.normal(3, draw.d),
    "updates": lambda draw: draw.pick("1", "2", "3"),
    # a grid needs as many queries as keys; its layouts are tested where they are made
    "grid": lambda draw: "None",
    "tiles": lambda draw: draw.pick("(1, 1)", "(2, 1)", "(1, 2)", "(3, 2)"),
    "pad": lambda draw: draw.pick("'post'", "'pre'"),
    "pivots": lambda draw: draw.normal(3, draw.d),
    "rank": lambda draw: "3",
    # a sample depends on the order of the queries, which promises here do not
    "coarse": lambda draw: draw.pick("None", "1"),
    "pivot_mass": lambda draw: draw.positive(3),
    "window": lambda draw: draw.pick("1", "2", "3", "5", "256"),
    "sink": lambda draw: draw.pick("0", "1", "3"),
    "stride": lambda draw: draw.pick("1", "2", "3", "5"),
    "correction": lambda draw: draw.pick("'delta'", "'mass'", "'recompute'", "'none'"),
    "tail": lambda draw: draw.pick("0", "1", "4"),
    "inner": lambda draw: draw.pick("'softmax'", "'softmax(eps=0.5)'", "'entmax'"),
    "weight": lambda draw: draw.normal(draw.n, draw.m),
    "logit": lambda draw: draw.option(-3.0, 3.0, 0.0, -50.0),
    "shift": lambda draw: draw.option(-3.0, 3.0, 0.0),
    "query_variance": lambda draw: draw.variance(draw.n, draw.d),
    "key_variance": lambda draw: draw.variance(draw.m, draw.d),
    "noise": lambda draw: "0.0",
    "bin_score": lambda draw: draw.option(-3.0, 3.0, 0.0, 30.0),
    "row_price": lambda draw: draw.price(draw.n),
    "column_price": lambda draw: draw.price(draw.m),
    "threshold": lambda draw: draw.pick("0.0", "0.2", "0.5", "1"),
    "end": lambda draw: draw.pick("'rows'", "'columns'"),
    "row_capacity": lambda draw: draw.capacity(draw.n),
    "column_capacity": lambda draw: draw.capacity(draw.m),
}
# options whose defaults take long, or whose choices are the point: never left out
ALWAYS = ("iters", "layers", "backend", "rank", "noise")
TOKENS = ("query", "key", "value", "scores", "value_variance", "state")
MASKS = ("mask", "query_mask", "key_mask")


def draw_options(draw: Draw, function: Callable, share: float = 0.35) -> dict[str, str]:
    """Some of the options of a function, each as text."""
    names = inspect.signature(inspect.unwrap(function)).parameters
    drawn = {
        name: OPTIONS[name](draw)
        for name in names
        if name not in (*TOKENS, *MASKS) and (name in ALWAYS or draw.chance(share))
    }
    if "column_mass" in drawn:
        # both together must have the same total
        drawn.pop("row_mass", None)
    return drawn


def draw_backend(draw: Draw, row: bistoch.functional.Operator) -> dict[str, str]:
    """One of the backends of an operator that run here, if it has several."""
    names = [name for name in row.backends if name != "triton"]
    if "backend" not in row.options():
        return {}
    return {"backend": draw.pick("'auto'", *(f"'{name}'" for name in names), "'cpu'")}


def draw_masks(draw: Draw, kind: str = "any", *, equal: bool = False) -> dict[str, str]:
    """What is hidden: pairs ("any"), keys ("shared"), or nothing but padding."""
    drawn = {}
    if kind != "padding" and draw.chance(0.5):
        drawn["mask"] = draw.mask(shared=kind == "shared")
    if draw.chance(0.3):
        drawn["key_mask"] = draw.padding(draw.m)
    if equal and "key_mask" in drawn:
        drawn["query_mask"] = drawn["key_mask"]
    elif not equal and draw.chance(0.3):
        drawn["query_mask"] = draw.padding(draw.n)
    return drawn


def draw_tokens(draw: Draw, *names: str) -> dict[str, str]:
    size = draw.pick(1.0, 1.0, 1.0, 1.0, 1.0, 1e-3, 0.0, 30.0, 1e4)
    shapes = {"query": (draw.n, draw.d), "key": (draw.m, draw.d), "value": (draw.m, draw.e)}
    sizes = {"query": size, "key": size, "value": 1.0}
    # at least one of them has all leading axes
    whole = draw.pick(*names)
    return {name: draw.tokens(*shapes[name], sizes[name], name == whole) for name in names}


def operator_call(seed: int) -> Call:
    """A call of a row of the table."""
    row = random.Random(~seed).choice(list(bistoch.OPERATORS.values()))
    longest = 7 if row.name == "quantum" else 17 if row.longest else 1000
    draw = Draw(seed, longest=longest, square=row.square)
    kind = "shared" if row.name in SHARED_MASK else row.masks
    arguments = draw_tokens(draw, "query", "key", "value")
    arguments |= draw_masks(draw, kind, equal=row.name in EQUAL_PADDING)
    arguments |= draw_options(draw, row.attention) | draw_backend(draw, row)
    if row.name == "delta":
        # kernels are for some of its rows
        plain = arguments.get("inner", "'softmax'").startswith("'softmax")
        able = plain and arguments.get("correction") != "'mass'"
        arguments["backend"] = draw.pick("'auto'", "'reference'", "'cpu'" if able else "'auto'")
        if not plain and arguments.get("correction") == "'mass'":
            del arguments["inner"]
    if row.name == "monarch":
        # here an iteration makes the form itself
        arguments["iters"] = draw.pick("1", "2", "3")
    return Call(f"bistoch.{row.name}_attention", arguments, draw.limits())


def scores_call(seed: int) -> Call:
    """A call of `balance` or its kin; many small matrices go to a kernel of their own."""
    draw = Draw(seed)
    return given_call(draw, draw.pick("balance", "balance", "balance", "gumbel_balance"))


def given_call(draw: Draw, name: str) -> Call:
    """A function of scores."""
    size = draw.pick(1.0, 1.0, 1.0, 0.0, 30.0, 1e4)
    draw.batch = (19,) if draw.chance(0.1) and not draw.large else draw.batch
    shape = (*draw.batch, draw.n, draw.m)
    scores = draw.tensor(f"normal({draw.seed()}, {shape}, {draw.dtype!r}, {size})")
    function = getattr(bistoch, name)
    arguments = {"scores": scores} | draw_masks(draw) | draw_options(draw, function)
    names = inspect.signature(inspect.unwrap(function)).parameters
    arguments = {name: text for name, text in arguments.items() if name in names}
    if name == "prototype_codes":
        arguments.setdefault("eps", "0.05")
    if name == "match":
        slack = [n for n in ("bin_score", "row_price", "column_price") if n in arguments]
        if not slack:
            arguments["bin_score"] = OPTIONS["bin_score"](draw)
        elif slack[0] == "bin_score":
            arguments = {n: text for n, text in arguments.items() if n not in slack[1:]}
        if arguments.get("end") == "'columns'" and arguments["iters"] == "0":
            arguments["iters"] = "1"
    return Call(f"bistoch.{name}", arguments, draw.limits())


def logs_call(seed: int) -> Call:
    draw = Draw(seed)
    return given_call(draw, draw.pick("log_balance", "prototype_codes"))


def match_call(seed: int) -> Call:
    return given_call(Draw(seed), "match")


def hard_call(seed: int) -> Call:
    return given_call(Draw(seed, longest=17), "hard_balance")


def potentials_call(seed: int) -> Call:
    draw = Draw(seed)
    if draw.chance(0.5):
        return given_call(draw, "balance_potentials")
    arguments = draw_tokens(draw, "query", "key") | draw_masks(draw)
    arguments |= draw_options(draw, bistoch.elastic_potentials)
    return Call("bistoch.elastic_potentials", arguments, draw.limits())


def moments_call(seed: int) -> Call:
    draw = Draw(seed)
    arguments = draw_tokens(draw, "query", "key", "value")
    arguments["value_variance"] = draw.variance(draw.m, draw.e)
    arguments |= draw_masks(draw) | draw_options(draw, bistoch.wasserstein_moments)
    return Call("bistoch.wasserstein_moments", arguments, draw.limits())


def steps_call(seed: int) -> Call:
    """A whole sequence; the check cuts it into the steps of `causal_elastic_step`."""
    draw = Draw(seed, square=True)
    # what is padding in the cache is told with the mask of keys
    arguments = draw_tokens(draw, "query", "key", "value") | draw_masks(draw, equal=True)
    arguments |= draw_options(draw, bistoch.causal_elastic_step)
    arguments["backend"] = draw.pick("'auto'", "'reference'", "'streaming'")
    cuts = sorted(draw.random.randint(0, draw.n) for _ in range(draw.random.randint(0, 4)))
    return Call("bistoch.causal_elastic_attention", arguments, draw.limits(), {"cuts": cuts})


def layer_call(seed: int) -> Call:
    """A layer of `bistoch.nn`, within one sequence, around an operator with a few options."""
    row = random.Random(~seed).choice([*bistoch.OPERATORS.values()])
    draw = Draw(seed, longest=7 if row.name == "quantum" else 17, square=True)
    draw.dtype, draw.batch = draw.pick("float32", "float64"), draw.pick((), (1,), (2,), (3,))
    options = draw_options(draw, row.attention, 0.2) | draw_backend(draw, row)
    options |= {"iters": draw.pick("1", "3", "5")}
    known = {"lam", "iters", "backend", "scale", "block", "ansatz", "layers"} & set(row.options())
    options = {name: text for name, text in options.items() if name in known and "(" not in text}
    operator = f"{row.name}({', '.join(f'{name}={text}' for name, text in options.items())})"
    kind = draw.pick("Attention", "MultiheadAttention")
    first = ", batch_first=True" if kind == "MultiheadAttention" else ""
    text = f"{kind}(6, {draw.pick(1, 2, 3)}, operator={operator!r}{first})"
    arguments = {"query": f"normal({draw.seed()}, {(*draw.batch, draw.n, 6)}, {draw.dtype!r})"}
    if draw.chance(0.3):
        arguments["key_mask"] = (
            f"coins({draw.seed()}, {(*draw.batch, draw.n)}, {draw.pick(0.5, 0.8)})"
        )
    if draw.chance(0.5) and row.masks == "any":
        draw.batch = ()
        arguments["mask"] = f"{draw.mask()}.expand({draw.n}, {draw.n})"
    return Call(f"layer({draw.seed()}, {text!r}, {draw.dtype!r})", arguments, draw.limits())


def poisoned_call(seed: int) -> Call:
    """A call with one number that is none: NaN or infinite, in a token or in a bias."""
    draw = random.Random(~seed)
    kinds = (scores_call, scores_call, hard_call)
    call = operator_call(seed) if draw.random() < 0.7 else draw.choice(kinds)(seed)
    places = [n for n in ("query", "key", "value", "scores", "mask") if n in call.arguments]
    name = draw.choice([n for n in places if "logical_not" not in call.arguments[n]])
    number = draw.choice(
        ("nan", "nan", "inf") if name in ("mask", "scores") else ("nan", "inf", "-inf")
    )
    call.notes = {"where": name, "number": number, "place": draw.random()}
    return call
