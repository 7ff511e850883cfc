"""The processes that train one model together, started by torchrun; usually there is one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from bistoch.lab.device import read_device


class Ranks:
    """The rank of this process, the number of processes, and the device it computes on.

    >>> Ranks(1, 2, torch.device("cpu")).share(torch.arange(5)).tolist()
    [1, 3]
    """

    def __init__(self, rank: int, world_size: int, device: torch.device):
        self.rank, self.world_size, self.device = rank, world_size, device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def share(self, rows: Tensor) -> Tensor:
        """The rows of a batch that this process computes."""
        return rows[self.rank :: self.world_size]

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over all processes."""
        if self.world_size == 1:
            return model
        devices = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)

    def sum(self, values: list[float]) -> list[float]:
        """The sums of some numbers over all processes."""
        if self.world_size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return cast(list[float], total.tolist())


@contextmanager
def joined_ranks(device: str = "cpu") -> Iterator[Ranks]:
    """Join the process group if torchrun started this process, and leave it at the end.

    Args:
        device: "cpu" or "cuda"; with "cuda" every process of a machine uses a GPU of its own.

    >>> with joined_ranks() as ranks:
    ...     ranks.world_size
    1
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    gpu = int(os.environ.get("LOCAL_RANK", "0"))
    own = read_device(f"cuda:{gpu}" if device == "cuda" else device, "train")
    if world_size == 1 or distributed.is_initialized():
        yield Ranks(0, 1, own)
        return
    distributed.init_process_group("nccl" if own.type == "cuda" else "gloo")
    try:
        yield Ranks(distributed.get_rank(), world_size, own)
    finally:
        distributed.destroy_process_group()
