"""Randomness of a run without any state: what a step draws follows from where it stands.

The order of an epoch and the random numbers of a step are functions of the seed and of the place
in the run. So there is nothing to keep in a checkpoint, and nothing that could be forgotten in it.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Int
from torch import Generator, Tensor


def seed_of(*place: object) -> int:
    """A seed for a place in a run, unrelated to that of its neighbours.

    >>> seed_of("order", 0, 1) == seed_of("order", 0, 1), seed_of("order", 0, 1) > 0
    (True, True)
    """
    return int.from_bytes(hashlib.sha256(repr(place).encode()).digest()[:4], "little")


def epoch_order(seed: int, epoch: int, count: int) -> Int[Tensor, "count"]:
    """The order in which an epoch sees the samples.

    >>> sorted(epoch_order(0, 3, 5).tolist()), epoch_order(0, 3, 5).tolist()
    ([0, 1, 2, 3, 4], [3, 2, 1, 0, 4])
    """
    return torch.randperm(count, generator=Generator().manual_seed(seed_of("order", seed, epoch)))


def seed_all(*place: object) -> None:
    """Set the random numbers of torch, numpy and Python for a place in a run."""
    seed = seed_of(*place)
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@contextmanager
def borrowed_randomness() -> Iterator[None]:
    """Put the random numbers of torch, numpy and Python back at the end, as if nothing was drawn.

    >>> before = torch.get_rng_state()
    >>> with borrowed_randomness():
    ...     seed_all("anywhere")
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    ours, theirs = random.getstate(), np.random.get_state()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(gpus):
            yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)
