"""The processes that train one model together, started by torchrun; usually there is one."""

import atexit
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from bistoch.lab.device import read_device

T = TypeVar("T")
Parallel = Literal["ddp", "fsdp"]
# seconds after which a process that does not answer ends the run
TIMEOUT = 600.0


class PeerError(ValueError):
    """Another process ended or does not answer; this one cannot go on alone."""


class Ranks:
    """The rank of this process, the number of processes, and the device it computes on.

    Args:
        rank, world_size, device: of this process.
        parallel: "ddp" keeps the whole model in every process, "fsdp" a shard of every parameter,
            of its gradient and of its optimizer state (FSDP2, `fully_shard`).

    >>> Ranks(1, 2, torch.device("cpu")).share(torch.arange(5))
    (tensor([1, 3]), 1.0)
    """

    def __init__(
        self, rank: int, world_size: int, device: torch.device, parallel: Parallel = "ddp"
    ):
        self.rank, self.world_size, self.device = rank, world_size, device
        self.is_sharded = parallel == "fsdp" and world_size > 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def share(self, rows: Tensor) -> tuple[Tensor, float]:
        """The rows of a batch that this process computes, and their weight in a sum.

        All processes take part in every step: one without rows computes the first, of weight zero.

        >>> Ranks(2, 3, torch.device("cpu")).share(torch.arange(2))
        (tensor([0]), 0.0)
        """
        own = rows[self.rank :: self.world_size]
        return (own, 1.0) if len(own) else (rows[:1], 0.0)

    def shard(self, model: nn.Module) -> None:
        """With FSDP, shard a model in place: every layer of a list of layers, then the rest."""
        if not self.is_sharded:
            return
        from torch.distributed.fsdp import fully_shard

        self.synchronize([*model.parameters(), *model.buffers()])
        mesh = distributed.init_device_mesh(self.device.type, (self.world_size,))
        for layers in [m for m in model.modules() if isinstance(m, nn.ModuleList)]:
            for layer in layers:
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over all processes; FSDP does that by itself."""
        if self.world_size == 1 or self.is_sharded:
            return model
        devices = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)

    def synchronize(self, tensors: list[Tensor]) -> None:
        """Give every process the values of the main one."""
        if self.world_size > 1:
            for x in tensors:
                distributed.broadcast(x.detach(), 0)

    def sum(self, values: list[float]) -> list[float]:
        """The sums of some numbers over all processes."""
        if self.world_size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return cast(list[float], total.tolist())

    def from_main(self, make: Callable[[], T]) -> T:
        """What the main process makes, in every process; its error is raised in every process.

        >>> Ranks(0, 1, torch.device("cpu")).from_main(lambda: 3)
        3
        """
        if self.world_size == 1:
            return make()
        made: list[Any] = [None, None]
        if self.is_main:
            try:
                made[0] = make()
            except Exception as error:
                made[1] = error
        distributed.broadcast_object_list(made)
        if made[1] is not None:
            raise made[1]
        return cast(T, made[0])

    def check_same(self, facts: dict[str, Any]) -> None:
        """Check that all processes were given the same; if not, all of them raise."""
        if self.world_size == 1:
            return
        found: list[Any] = [None] * self.world_size
        distributed.all_gather_object(found, facts)
        for rank, other in enumerate(found):
            for name in [*found[0], *other]:
                first, second = (x.get(name, "missing") for x in (found[0], other))
                if first != second:
                    raise ValueError(
                        f"train: all processes must be given the same, but {name} is {first!r} in "
                        f"rank 0 and {second!r} in rank {rank}; start them by one command"
                    )


def whole(x: Tensor) -> Tensor:
    """A tensor with all of its shards, which all processes must ask for together."""
    return cast(Tensor, x.full_tensor()) if hasattr(x, "full_tensor") else x


def sharded_as(like: Tensor, x: Tensor) -> Tensor:
    """The own shard of a tensor that every process has whole."""
    if not hasattr(like, "full_tensor"):
        return x
    from torch.distributed.tensor import distribute_tensor

    at: Any = like
    x = x.to(at.device)
    return distribute_tensor(x, at.device_mesh, at.placements, src_data_rank=None)


@contextmanager
def joined_ranks(
    device: str = "cpu", parallel: Parallel = "ddp", *, timeout: float = TIMEOUT
) -> Iterator[Ranks]:
    """Join the process group if torchrun started this process, and leave it at the end.

    Args:
        device: "cpu" or "cuda"; with "cuda" every process of a machine uses a GPU of its own.
        parallel: "ddp" or "fsdp", as for `Ranks`.
        timeout: seconds after which a process that does not answer ends the run. A group that is
            joined already keeps its own.

    >>> with joined_ranks() as ranks:
    ...     ranks.world_size
    1
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    gpu = int(os.environ.get("LOCAL_RANK", "0"))
    own = read_device(f"cuda:{gpu}" if device == "cuda" else device, "train")
    was_joined = distributed.is_available() and distributed.is_initialized()
    if world_size == 1 and not was_joined:
        yield Ranks(0, 1, own)
        return
    if own.type == "cuda":
        torch.cuda.set_device(own)
    try:
        if not was_joined:
            # imported here, before there is a group that its defaults would keep for ever
            from torch.distributed.nn import functional as _  # noqa: F401

            backend = "cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo"
            distributed.init_process_group(backend, timeout=timedelta(seconds=timeout))
        yield Ranks(distributed.get_rank(), distributed.get_world_size(), own, parallel)
    except RuntimeError as error:
        # gloo raises plain errors of this kind
        if not isinstance(error, distributed.DistError) and "gloo" not in str(error):
            raise
        rank = os.environ.get("RANK", "0")
        raise PeerError(
            f"train: another process ended, or did not answer in time, so rank {rank} ends too; "
            "what it printed says why, the last checkpoint is kept, and the same command resumes"
        ) from error
    finally:
        if not was_joined and distributed.is_initialized():
            distributed.destroy_process_group()
            _end_group_threads()
            # a model that the caller still has is dropped later
            atexit.register(_end_group_threads)


def _end_group_threads() -> None:
    """Drop what keeps the threads of a destroyed group, since one left at exit may abort it.

    The threads of gloo end with the last reference to their group. Sharded tensors refer to it by
    their mesh, and torch keeps descriptions of these tensors in caches, whose names differ from
    version to version.
    """
    caches = [x for x in gc.get_objects() if type(x) is functools._lru_cache_wrapper]
    for cached in caches:
        if str(getattr(cached, "__module__", "")).startswith("torch.distributed."):
            cached.cache_clear()
    redistribute = sys.modules.get("torch.distributed.tensor._redistribute")
    for owner, name in (
        (torch._C, "_clear_DTensor_sharding_propagator_cache"),
        (redistribute, "clear_redistribute_planner_cache"),
    ):
        getattr(owner, name, lambda: None)()
    # models and their shards refer to each other
    gc.collect()
