"""A model that the page can show: what it reads, its heads, and what an operator changes in it."""

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from bistoch.analysis import capture, metrics
from bistoch.explorer.state import State
from bistoch.functional import OPERATORS, parse_operator
from bistoch.nn import build_operator

# options with a slider; for these operators they mean something else, or nothing
SLIDERS = ("lam", "eps", "iters")
WITHOUT_SLIDERS = ("hard", "sliced")
# texts are short: blocks of the usual length would hold all of their tokens
FIXED = {"causal_elastic": {"block": 8}}


@dataclass(frozen=True)
class Sample:
    """An input of a model: the names of its tokens, and what the model is called with."""

    tokens: list[str]
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Ran:
    """What a model did with a sample: the plan of each layer, and its output by name."""

    tokens: list[str]
    plans: list[Float[Tensor, "heads n n"]]
    output: dict[str, float]


class Subject(ABC):
    """A model with its inputs; `run` puts an operator into it and takes it out again.

    `heads` has the number of heads of each layer, `output_is` says what the numbers of the output
    are.
    """

    name: str
    title: str
    takes: ClassVar[Literal["text", "picture"]]
    output_is: str
    causal: bool = False
    model: Any
    heads: list[int]

    def __init__(self) -> None:
        # the model is changed in place, and the server answers in several threads
        self._lock = threading.Lock()
        self._run = functools.lru_cache(maxsize=256)(self._compute)

    @abstractmethod
    def read(self, state: State) -> Sample:
        """The text or picture of a state as an input; a ValueError says what is wrong with it."""

    @abstractmethod
    def put(self, operator: str, layers: Sequence[int], heads: Sequence[int] | None) -> None:
        """Put an operator into some heads."""

    @abstractmethod
    def restore(self) -> None:
        """Take all operators out again."""

    @abstractmethod
    def compute(self, sample: Sample) -> dict[str, float]:
        """Run the model; its output by name."""

    @abstractmethod
    def lines(self, state: State) -> list[str]:
        """Python that loads the model, puts the operator in, and finds plan and output."""

    @abstractmethod
    def example(self) -> State:
        """A state with an input for the first view."""

    def check_picture(self, word: str) -> None:
        """Refuse what is no picture for this model."""
        raise ValueError(f"picture is given, but {self.title} reads a text")

    def describe(self, token: str) -> str:
        """A token in a sentence."""
        return f"the token {token}"

    @functools.cached_property
    def opening(self) -> State:
        """The head in which one key receives the most, with full balance in this head."""
        state = self.example()
        peaks = self.peaks(state)
        layer, head = max(
            ((i, j) for i, count in enumerate(self.heads) for j in range(count)),
            key=lambda place: peaks[place[0]][place[1]],
        )
        return State(**{**vars(state), "layer": layer, "head": head})

    @functools.cached_property
    def operators(self) -> list[str]:
        """The operators that can be put into this model and need no training."""
        fitting = []
        for name, row in OPERATORS.items():
            learned = any(True for _ in build_operator(name, heads=1, size=1).parameters())
            fits = row.causal if self.causal else not row.always_causal
            if fits and not row.static and not learned:
                fitting.append(name)
        return fitting

    def run(self, state: State, *, swapped: bool) -> Ran:
        """What the model does with the input of a state, as it is or with the operator in it."""
        operator = operator_text(state) if swapped else None
        layers, heads = places(state, len(self.heads))
        return self._run(state.text, state.picture, operator, layers, heads if swapped else None)

    def peaks(self, state: State) -> list[list[float]]:
        """The largest column sum of every head of the model as it is."""
        ran = self.run(state, swapped=False)
        return [metrics.column_sums(plan).amax(-1).tolist() for plan in ran.plans]

    def _compute(
        self,
        text: str,
        picture: str,
        operator: str | None,
        layers: tuple[int, ...],
        heads: tuple[int, ...] | None,
    ) -> Ran:
        sample = self.read(State(self.name, text=text, picture=picture))
        if operator is not None:
            row, _ = parse_operator(operator, OPERATORS)
            if row.longest is not None and len(sample.tokens) > row.longest:
                raise ValueError(
                    f"{row.name} takes too long for {len(sample.tokens)} tokens, more than "
                    f"{row.longest}; choose another operator or a shorter text"
                )
        device = next(self.model.parameters()).device
        moved = {name: x.to(device) for name, x in sample.arguments.items()}
        sample = Sample(sample.tokens, moved)
        with self._lock:
            if operator is not None:
                self.put(operator, layers, heads)
            try:
                with torch.no_grad(), capture(self.model, problems=1, states=None) as seen:
                    output = self.compute(sample)
            finally:
                self.restore()
        n = len(sample.tokens)
        # padding is at the end
        plans = [one.plan[0, :, :n, :n].float().cpu() for one in seen.plans]
        return Ran(sample.tokens, plans, output)


def places(state: State, depth: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The layers and heads that get the operator of a state; None for all heads.

    >>> places(State("vit", layer=2, head=1, where="head"), 4)
    ((2,), (1,))
    >>> places(State("vit", layer=2, head=1, where="model"), 4)
    ((0, 1, 2, 3), None)
    """
    layers = tuple(range(depth)) if state.where == "model" else (state.layer,)
    return layers, (state.head,) if state.where == "head" else None


def sliders_of(operator: str) -> tuple[str, ...]:
    """The options of an operator that have a slider.

    >>> sliders_of("elastic"), sliders_of("softmax"), sliders_of("hard")
    (('lam', 'eps', 'iters'), ('eps',), ())
    """
    if operator in WITHOUT_SLIDERS:
        return ()
    return tuple(name for name in SLIDERS if name in OPERATORS[operator].options())


def operator_text(state: State) -> str:
    """The operator of a state, as `convert` and `nn.Attention` read it.

    >>> operator_text(State("vit", operator="elastic", lam=0.5))
    'elastic(lam=0.5, eps=1.0, iters=10)'
    >>> operator_text(State("vit", operator="hard"))
    'hard'
    """
    options = {name: getattr(state, name) for name in sliders_of(state.operator)}
    options |= FIXED.get(state.operator, {})
    if not options:
        return state.operator
    return f"{state.operator}({', '.join(f'{name}={x!r}' for name, x in options.items())})"
