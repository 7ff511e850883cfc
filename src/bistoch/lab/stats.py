"""Whether a difference is more than noise: paired differences, 95 % intervals and verdicts."""

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import NamedTuple

LEVEL = 0.95
YES = "yes"
NO = "no"
OPPOSITE = "no, the opposite"
INCONCLUSIVE = "inconclusive"


class Verdict(NamedTuple):
    """A claim, what was measured about it, and whether that agrees."""

    claim: str
    measured: str
    holds: str


class Difference(NamedTuple):
    """Paired differences, their mean and its 95 % interval."""

    each: tuple[float, ...]
    mean: float
    low: float
    high: float

    @property
    def inconclusive(self) -> bool:
        """Whether the interval holds zero: the sign of the difference may be noise."""
        return self.low <= 0 <= self.high

    def text(self, form: str = ".3f", scale: float = 1.0) -> str:
        """The mean with its sign, and the interval if there is one.

        >>> difference((0.2, 0.3)).text(), difference((0.2,)).text(".1f", scale=100)
        ('+0.250 [-0.385, +0.885]', '+20.0')
        """
        middle, low, high = (f"{scale * x:+{form}}" for x in (self.mean, self.low, self.high))
        return f"{middle} [{low}, {high}]" if math.isfinite(self.high) else middle

    def verdict(self, *, larger: bool) -> str:
        """Whether it is larger (or smaller) than zero beyond its interval.

        >>> difference((-0.02, -0.021, -0.019)).verdict(larger=False)
        'yes'
        >>> difference((-0.02, 0.021, 0.0)).verdict(larger=False)
        'inconclusive'
        """
        if self.inconclusive:
            return INCONCLUSIVE
        return YES if (self.mean > 0) == larger else OPPOSITE


def difference(each: Sequence[float], *, grain: float = 0.0) -> Difference:
    """The mean of paired differences over seeds, with its interval by Student's t.

    Args:
        each: one difference per seed; with a single one the interval is infinite.
        grain: the smallest step of the score. Seeds that agree exactly do so because the score is
            coarse, so their standard deviation is taken to be no smaller than this.

    >>> found = difference((1.0, 2.0, 3.0))
    >>> round(found.low, 2), round(found.high, 2), difference((1.0,)).high
    (-0.48, 4.48, inf)
    """
    middle = mean(each)
    if len(each) < 2:
        return Difference(tuple(each), middle, -math.inf, math.inf)
    from scipy.stats import t

    error = max(stdev(each), grain) / math.sqrt(len(each))
    half = float(t.ppf((1 + LEVEL) / 2, len(each) - 1)) * error
    return Difference(tuple(each), middle, middle - half, middle + half)


def bootstrap_difference(each: Sequence[float], *, resamples: int = 4999) -> Difference:
    """The mean of paired differences over many samples, with its interval by the bootstrap.

    For results without seeds: one difference per query, shape or text that both methods were given.

    >>> found = bootstrap_difference([1.0, 0.0] * 50)
    >>> found.mean, 0.38 < found.low < 0.42, found.inconclusive
    (0.5, True, False)
    """
    import numpy as np
    from scipy.stats import bootstrap

    middle = mean(each)
    if len(each) < 2:
        return Difference(tuple(each), middle, -math.inf, math.inf)
    # a batch of resamples at a time, so that many samples do not fill the memory
    batch = max(1, 2**22 // len(each))
    found = bootstrap(
        (np.asarray(each),), np.mean, confidence_level=LEVEL, n_resamples=resamples, batch=batch,
        method="percentile", rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return Difference(tuple(each), middle, float(found.low), float(found.high))


def spread(values: Sequence[float], scale: float = 1.0, form: str = ".1f") -> str:
    """Mean and standard deviation over seeds.

    >>> spread([0.5, 0.6], 100), spread([0.5], 100), spread([])
    ('55.0 ± 7.1', '50.0', 'none')
    """
    if not values:
        return "none"
    middle = f"{scale * mean(values):{form}}"
    return middle if len(values) < 2 else f"{middle} ± {scale * stdev(values):{form}}"


def seeds_of(count: int) -> str:
    """How many seeds a number is of.

    >>> seeds_of(1), seeds_of(3)
    ('1 seed', '3 seeds')
    """
    return "1 seed" if count == 1 else f"{count} seeds"
