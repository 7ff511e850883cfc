"""Several processes that train one model together, started by torchrun; usually there is one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from bistoch.lab.device import read_device


class Ranks:
    """Which process this is, of how many, and on which device it computes.

    >>> Ranks(0, 1, torch.device("cpu")).share(torch.arange(5)).tolist()
    [0, 1, 2, 3, 4]
    >>> Ranks(1, 2, torch.device("cpu")).share(torch.arange(5)).tolist()
    [1, 3]
    """

    def __init__(self, rank: int, count: int, device: torch.device):
        self.rank, self.count, self.device = rank, count, device

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def share(self, rows: Tensor) -> Tensor:
        """The rows of a batch that are computed here."""
        return rows[self.rank :: self.count]

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as it is trained: its gradients are averaged over all processes."""
        if self.count == 1:
            return model
        here = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=here)

    def sum(self, values: list[float]) -> list[float]:
        """The sum of some numbers over all processes."""
        if self.count == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return cast(list[float], total.tolist())


@contextmanager
def joined_ranks(device: str = "cpu") -> Iterator[Ranks]:
    """Join the other processes if torchrun started this one, and leave them at the end.

    Args:
        device: "cpu" or "cuda"; with "cuda" every process of a machine takes a card of its own.

    >>> with joined_ranks() as ranks:
    ...     ranks.count
    1
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    card = int(os.environ.get("LOCAL_RANK", "0"))
    own = read_device(f"cuda:{card}" if device == "cuda" else device, "train")
    if count == 1 or distributed.is_initialized():
        yield Ranks(0, 1, own)
        return
    distributed.init_process_group("nccl" if own.type == "cuda" else "gloo")
    try:
        yield Ranks(distributed.get_rank(), count, own)
    finally:
        distributed.destroy_process_group()
