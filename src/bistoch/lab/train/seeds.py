"""Random numbers without state: what a step draws is a function of the seed and the step.

The order of an epoch and the random numbers of a step follow from the seed and from where the run
is. So a checkpoint holds no random state, and none can be forgotten in it.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Int
from torch import Generator, Tensor


def seed_of(*where: object) -> int:
    """A seed for a point of a run, unrelated to the seeds of other points.

    >>> seed_of("order", 0, 1) == seed_of("order", 0, 1), seed_of("order", 0, 1) > 0
    (True, True)
    """
    return int.from_bytes(hashlib.sha256(repr(where).encode()).digest()[:4], "little")


def epoch_order(seed: int, epoch: int, count: int) -> Int[Tensor, "count"]:
    """The order of the samples in an epoch.

    >>> epoch_order(0, 3, 5).tolist()
    [3, 2, 1, 0, 4]
    """
    return torch.randperm(count, generator=Generator().manual_seed(seed_of("order", seed, epoch)))


def seed_all(*where: object) -> None:
    """Seed torch, numpy and Python for a point of a run."""
    seed = seed_of(*where)
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restore the random states of torch, numpy and Python at the end.

    >>> before = torch.get_rng_state()
    >>> with preserved_random_state():
    ...     seed_all("anywhere")
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    python, of_numpy = random.getstate(), np.random.get_state()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(gpus):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
