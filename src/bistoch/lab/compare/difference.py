"""What one line has more than another, seed by seed, and whether that is more than noise."""

import math
from statistics import mean, stdev
from typing import NamedTuple


class Difference(NamedTuple):
    """What one line has more than another, seed by seed.

    `grain` is the smallest step of a score: seeds that agree exactly do so by counting coarsely,
    and are not taken to differ by less.
    """

    each: tuple[float, ...]
    grain: float = 0.0

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return mean(self.each)

    @property
    def half(self) -> float:
        """Half the width of its 95 % interval (Student); infinite with one seed.

        >>> round(Difference((1.0, 2.0, 3.0)).half, 2), Difference((1.0,)).half
        (2.48, inf)
        """
        if len(self.each) < 2:
            return math.inf
        from scipy.special import stdtrit

        errors = float(stdtrit(len(self.each) - 1, 0.975))
        return errors * max(stdev(self.each), self.grain) / math.sqrt(len(self.each))

    @property
    def is_noise(self) -> bool:
        """Whether the interval holds zero."""
        return abs(self.mean) <= self.half

    def __str__(self) -> str:
        """The mean and the spread over seeds, with sign.

        >>> str(Difference((-0.02, -0.03))), str(Difference((0.01,)))
        ('-0.025 ± 0.007', '+0.010')
        """
        if len(self.each) < 2:
            return f"{self.mean:+.3f}"
        return f"{self.mean:+.3f} ± {stdev(self.each):.3f}"

    def judge(self) -> str:
        """Whether it lies below zero beyond its interval, above it, or neither.

        >>> Difference((-0.02, -0.021, -0.019)).judge(), Difference((-0.02, 0.021, 0.0)).judge()
        ('yes', 'not to be told')
        """
        if self.is_noise:
            return "not to be told"
        return "yes" if self.mean < 0 else "no, the opposite"
