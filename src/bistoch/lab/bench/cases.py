"""What is computed: shapes, scores and options, and tensors made from them by a fixed seed."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from bistoch.flows import two_bumps

Task = Literal["attention", "balance", "heat"]
Scores = Literal["random", "peaked", "line", "plane", "pixels"]
Direction = Literal["forward", "forward+backward"]

SEED = 0
# tokens of a long sequence that differ; longer ones repeat them
DISTINCT = 8192
# of a contender that balances from a sample first, every how manyth query; it divides the above
COARSE = 16
# the standard deviation of peaked scores, and how much more every query likes the sink key
PEAKED_STD, SINK = 4.0, 8.0
# of a heat step: the temperature, by the cloud
EPS: dict[Scores, float] = {"line": 0.01, "plane": 0.05, "pixels": 100.0}
SCORES = {
    "random": "q, k ~ N(0, 1): scores have standard deviation 1",
    "peaked": f"scores have standard deviation {PEAKED_STD:g}, and every query likes one sink key "
    f"by {SINK:g} more",
    "line": f"a heat step of two bumps on the line, eps = {EPS['line']:g}, float64",
    "plane": f"a heat step of a Gaussian in the plane, eps = {EPS['plane']:g}",
    "pixels": "a heat step in 784 dimensions, with variances that fall as those of pictures do, "
    f"eps = {EPS['pixels']:g}",
}


@dataclass(frozen=True)
class Setting:
    """How far to balance: elasticity and iterations.

    >>> str(Setting(lam=0.5, iters=5))
    'lam=0.5 iters=5'
    """

    lam: float = 1.0
    iters: int = 10

    def __str__(self) -> str:
        return f"lam={self.lam:g} iters={self.iters}"


@dataclass(frozen=True)
class Case:
    """One problem for all contenders: `shape` is (batch, heads, n, d), (count, n, n) or (1, n, d).

    >>> case = Case("n=64", "attention", (1, 8, 64, 32), "random")
    >>> case.problems, case.n, [tuple(tensor.shape) for tensor in case.inputs()]
    (8, 64, [(1, 8, 64, 32), (1, 8, 64, 32), (1, 8, 64, 32)])
    """

    name: str
    task: Task
    shape: tuple[int, ...]
    scores: Scores
    # how many tokens differ: the others repeat them in their order; None if all do
    distinct: int | None = None

    @property
    def n(self) -> int:
        """The number of queries, which is the number of keys."""
        return self.shape[-2]

    @property
    def problems(self) -> int:
        """How many plans there are: batch times heads."""
        return math.prod(self.shape[:-2])

    def inputs(self) -> tuple[Tensor, ...]:
        """Query, key and value, or only scores or particles; the same in every process."""
        generator = torch.Generator().manual_seed(SEED)
        if self.task == "balance":
            return (torch.randn(self.shape, generator=generator),)
        if self.task == "heat":
            # squared distances over eps are huge on the line, where float32 would be felt
            x = self.particles()
            return (x if self.scores == "line" else x.float(),)
        query, key, value = torch.randn(3, *self._unrepeated(), generator=generator).unbind()
        if self.scores == "peaked":
            query, key = _sharpen(query, key)
        return self._repeat(query), self._repeat(key), self._repeat(value)

    def particles(self) -> Tensor:
        """The cloud of a heat step, (n, d) in float64."""
        generator, (n, d) = torch.Generator().manual_seed(SEED), self.shape[-2:]
        if self.scores == "line":
            return two_bumps().sample(n, generator=generator)
        noise = torch.randn(n, d, dtype=torch.float64, generator=generator)
        if self.scores == "plane":
            return noise
        scale = torch.arange(1, d + 1, dtype=torch.float64) ** -0.5
        return noise * scale * math.sqrt(68 / scale.square().sum())

    def cotangent(self) -> Tensor:
        """What arrives from above at the result, for the backward."""
        generator = torch.Generator().manual_seed(SEED + 1)
        return self._repeat(torch.randn(self._unrepeated(), generator=generator))

    def once(self) -> "Case":
        """The same without the repeated tokens."""
        return replace(self, shape=self._unrepeated(), distinct=None)

    def _unrepeated(self) -> tuple[int, ...]:
        distinct = self.distinct or self.n
        return (*self.shape[:-2], distinct, self.shape[-1])

    def _repeat(self, tokens: Tensor) -> Tensor:
        times = -(-self.n // tokens.shape[-2])
        return torch.cat([tokens] * times, -2)[..., : self.n, :].contiguous()


def _sharpen(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Widen the scores, and give the first feature to a key that every query likes."""
    n, d = query.shape[-2:]
    query, key = (x * math.sqrt(PEAKED_STD) for x in (query, key))
    query[..., 0], key[..., 0] = 1, 0
    key[..., n // 3, 0] = SINK * math.sqrt(d)
    return query, key


BALANCE = Setting(lam=1.0, iters=20)


def small_matrices(count: int) -> Case:
    """Many 4 x 4 score matrices, as in manifold-constrained residual connections.

    >>> small_matrices(100).shape
    (100, 4, 4)
    """
    return Case(f"{count} 4x4", "balance", (count, 4, 4), "random")


def vit_batch(scores: Scores = "random") -> Case:
    """A training batch of a small vision transformer: 64 images, 6 heads, 64 patches and a class.

    >>> vit_batch().problems
    384
    """
    return Case("ViT batch", "attention", (64, 6, 65, 32), scores)


def sequence(n: int, heads: int, dim: int, scores: Scores) -> Case:
    """One sequence of n tokens.

    >>> sequence(64, 8, 32, "peaked").name
    'n=64'
    """
    return Case(f"n={n}", "attention", (1, heads, n, dim), scores)


def long_sequence(n: int, heads: int, dim: int) -> Case:
    """One long sequence; beyond `DISTINCT` tokens the first ones repeat.

    Copies of all queries and keys change neither softmax attention nor a balanced plan, nor their
    gradients: the exact result for the longest sequences is the one for the first tokens.

    >>> long_sequence(3 * DISTINCT, 2, 64).distinct == DISTINCT
    True
    """
    distinct = DISTINCT if n > DISTINCT and n % DISTINCT == 0 else None
    return Case(f"n={n}", "attention", (1, heads, n, dim), "random", distinct)


def cloud(n: int, law: Scores) -> Case:
    """A cloud of n particles that takes one heat step.

    >>> cloud(7, "pixels").inputs()[0].shape
    torch.Size([7, 784])
    """
    dimensions = {"line": 1, "plane": 2, "pixels": 784}
    return Case(f"n={n}", "heat", (1, n, dimensions[law]), law)
