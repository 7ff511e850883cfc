"""An operator as a module whose tokens are sharded over the ranks of a device mesh."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# operators that have a form over ranks
NAMES = ("softmax", "sinkhorn", "elastic", "causal_elastic")


def check_over_ranks(owner: str, name: str) -> None:
    """Refuse an operator that needs all tokens in one process."""
    if name not in NAMES:
        raise ValueError(
            f"{owner}: with a mesh the operator must be one of {', '.join(NAMES)}, but it is "
            f"{name}; leave the mesh out, or use one of these"
        )


def attend_over_ranks(
    name: str,
    mesh: "DeviceMesh",
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Tensor:
    """The rows of this rank, by an operator with its options and what the call brings.

    The gradient of an option that is learned is the share of this rank, as those of other weights
    are: the sum over ranks is that of one process.
    """
    from bistoch.distributed import rank_group

    if options.get("coarse") is not None:
        raise NotImplementedError(
            f"{name}: coarse must be None with a mesh, but it is {options['coarse']}: a sample of "
            "the queries would have to be gathered from all ranks; leave coarse out"
        )
    options = {option: x for option, x in options.items() if option != "coarse"}
    attend, fixed = _function(name)
    ranks = rank_group(f"{name}_attention", mesh=mesh)
    shared = {
        option: ranks.share(x) if isinstance(x, Tensor) and x.requires_grad else x
        for option, x in options.items()
    }
    return attend(query, key, value, **fixed, **shared, **given, mesh=mesh)


def _function(name: str) -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """The form of an operator over ranks, and options that make it this operator."""
    from bistoch import distributed

    check_over_ranks(name, name)
    if name == "softmax":
        return distributed.elastic_attention, {"lam": 0.0, "iters": 0}
    return getattr(distributed, f"{name}_attention"), {}
