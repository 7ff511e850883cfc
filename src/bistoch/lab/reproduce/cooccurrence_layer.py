"""One attention layer that learns whether two words occur together, and what its training shows.

Samples, the layer, the trace of a training, and what the published analysis says about a trace.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bistoch.lab.study import Result

# the two words to be found together, and the word that is in every sample
FIRST, SECOND, COMMON = 0, 1, 2
# pairs (key, query) whose scores the analysis follows, and the direction in which they move
FOLLOWED = {
    "C12": (FIRST, SECOND, 1), "C21": (SECOND, FIRST, 1),
    "C31": (COMMON, FIRST, -1), "C32": (COMMON, SECOND, -1),
}  # fmt: skip
# kinds of samples: both words, the first alone, the second alone, neither; and their shares
KINDS = {"both": (3, 6), "first": (1, 6), "second": (1, 6), "neither": (1, 6)}


@dataclass(frozen=True)
class Sizes:
    """Samples, words and steps; by default those of the published experiment."""

    samples: int = 60
    length: int = 5
    words: int = 64
    features: int = 128
    hidden: int = 256
    rate: float = 0.01
    steps: int = 30_000
    test: int = 6_000
    points: int = 80


class Samples(NamedTuple):
    """Words of each sample, its kind (a place in `KINDS`) and its label, 1 or -1."""

    words: Tensor
    kind: Tensor
    label: Tensor


def draw_samples(count: int, sizes: Sizes, generator: torch.Generator) -> Samples:
    """Samples with exact shares of all kinds; other words are uniform, places are random.

    >>> drawn = draw_samples(6, Sizes(), torch.Generator().manual_seed(0))
    >>> drawn.kind.tolist(), (drawn.words == COMMON).sum(-1).tolist()
    ([0, 0, 0, 1, 2, 3], [1, 1, 1, 1, 1, 1])
    """
    shares = torch.tensor([count * part // whole for part, whole in KINDS.values()])
    kind = torch.arange(len(KINDS)).repeat_interleave(shares)
    words = torch.randint(3, sizes.words, (len(kind), sizes.length), generator=generator)
    words[:, 0] = COMMON
    words[kind <= 1, 1] = FIRST
    words[(kind == 0) | (kind == 2), 2] = SECOND
    order = torch.rand(words.shape, generator=generator).argsort(-1)
    label = torch.where(kind == 0, 1.0, -1.0).double()
    return Samples(words.gather(-1, order), kind, label)


class Layer:
    """One attention layer with a linear read-out, in float64.

        F(X) = sum over queries l, keys h of  P_lh G(x_h),   G(x) = a^T W W_V x

    Args:
        plan: makes plans of queries and keys.
        every_query: read all rows of the plan, as published, or only that of the common word.
    """

    def __init__(
        self, sizes: Sizes, plan: Callable, every_query: bool, generator: torch.Generator
    ) -> None:
        self.plan, self.every_query = plan, every_query

        def kaiming(*shape: int) -> Tensor:
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            return (drawn * math.sqrt(2 / shape[-1])).requires_grad_()

        self.hidden = kaiming(sizes.hidden, sizes.features)
        self.value, self.key, self.query = (kaiming(sizes.features, sizes.words) for _ in range(3))
        signs = torch.rand(sizes.hidden, generator=generator, dtype=torch.float64) < 0.5
        self.signs = torch.where(signs, 1.0, -1.0).double()
        self.weights = (self.hidden, self.value, self.key, self.query)

    def read_out(self) -> Tensor:
        """G of every word."""
        return self.signs @ self.hidden @ self.value

    def __call__(self, words: Tensor) -> Tensor:
        """F of every sample."""
        plan = self.plan(self.query.T[words], self.key.T[words])
        rows = plan @ self.read_out()[words][..., None]
        wanted = rows[..., 0] if self.every_query else rows[..., 0] * (words == COMMON)
        return wanted.sum(-1)

    @torch.no_grad()
    def scores(self) -> Tensor:
        """The score of every key (rows) for every query (columns), without the temperature."""
        return self.key.T @ self.query


def points(sizes: Sizes) -> Iterator[int]:
    """Steps to look at: the first and the last, and between them as dense in their logarithm.

    >>> list(points(Sizes(steps=100, points=5)))
    [0, 2, 9, 31, 100]
    """
    last = -1
    for number in range(sizes.points):
        step = round((sizes.steps + 1) ** (number / (sizes.points - 1))) - 1
        if step > last:
            yield step
        last = max(last, step)


def followed(moved: Tensor) -> Tensor:
    """The four coefficients of the analysis, in the order of `FOLLOWED`."""
    return torch.stack([moved[key, query] for key, query, _ in FOLLOWED.values()])


@torch.no_grad()
def look(layer: Layer, samples: Samples, output: Tensor, losses: Tensor, before: Tensor) -> Result:
    """What the analysis follows: losses and gradients by kind, scores and read-outs by word."""
    pull = torch.sigmoid(-samples.label * output)
    of_kind = [samples.kind == kind for kind in range(len(KINDS))]
    now, first = followed(layer.scores()), followed(before)
    return {
        "loss": float(losses.mean()),
        "losses": [float(losses[some].mean()) for some in of_kind],
        "pulls": [float(pull[some].sum()) for some in of_kind],
        "right": float((output * samples.label > 0).double().mean()),
        "coefficients": (now - first).tolist(),
        "change": float((now - first).norm() / first.norm()),
        "read": layer.read_out()[:3].tolist(),
    }


# what the traces say


def all_right(result: Result) -> float:
    """The first step from which on every sample of training is classified correctly."""
    wrong = [point["step"] for point in result["trace"] if point["right"] < 1]
    later = [point["step"] for point in result["trace"] if not wrong or point["step"] > wrong[-1]]
    return float(later[0]) if later else math.inf


def attention_moves(result: Result) -> float:
    """The first step at which the four scores have changed by a tenth."""
    moved = [point["step"] for point in result["trace"] if point["change"] >= 0.1]
    return float(moved[0]) if moved else math.inf


def one_word(result: Result) -> list[float]:
    """The loss of samples with one of the words, the mean of both kinds, along the trace."""
    return [sum(point["losses"][1:3]) / 2 for point in result["trace"]]


def hump(result: Result) -> float:
    """How far the loss of samples with one of the words rises above its start, as a share of it."""
    losses = one_word(result)
    return max(losses) / losses[0] - 1


def top(result: Result) -> int:
    """The step at which the loss of samples with one of the words is largest."""
    losses = one_word(result)
    return int(result["trace"][losses.index(max(losses))]["step"])


def signs_hold(result: Result) -> float:
    """How many of the four coefficients end with the sign of the analysis."""
    last = result["trace"][-1]["coefficients"]
    signs = [sign for *_, sign in FOLLOWED.values()]
    return float(sum(value * sign > 0 for value, sign in zip(last, signs, strict=True)))


class Balance(NamedTuple):
    """How gradients of kinds compare at one point, by their sums over samples.

    `gap` is the difference of the two one-word kinds over the smaller of them, which should be far
    below one. `margin` is how far positive samples lie above either of these kinds and below all
    negative ones, the smaller of both distances, as a share of all gradients: a positive number.
    """

    step: int
    gap: float
    margin: float


def balance_of_pulls(result: Result) -> list[Balance]:
    """The balance of gradients at all points after the first phase; none if it does not end."""
    found = []
    for point in result["trace"]:
        if point["step"] >= all_right(result):
            both, first, second, neither = point["pulls"]
            margin = min(both - max(first, second), first + second + neither - both)
            gap = abs(first - second) / min(first, second)
            found.append(Balance(point["step"], gap, margin / sum(point["pulls"])))
    return found


def margins_hold(result: Result) -> float:
    """One if the read-out alone separates: G1 + G2 + G3 > 0 > G1 + G3, G2 + G3."""
    one, two, three = result["trace"][-1]["read"]
    return float(one + two + three > 0 > max(one, two) + three)
