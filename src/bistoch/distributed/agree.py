"""The one exchange with which a call begins: arguments of all ranks are right, and alike."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bistoch.distributed.collectives import RankGroup
from bistoch.functional import inputs
from bistoch.functional.backends import BackendUnavailableError
from bistoch.functional.inputs import Mask
from bistoch.functional.pose import BalanceOptions, ScoreOptions, check_balance, pose_padding

# those that go step by step
BACKENDS = ("reference", "streaming")


class Sizes(NamedTuple):
    """How many rows and keys every rank has."""

    rows: list[int]
    keys: list[int]


def check_backend(operator: str, backend: str) -> str:
    """A backend whose iterations can wait for other ranks; "auto" is streaming."""
    inputs.check_choice(operator, "backend", backend, ("auto", *BACKENDS, "cpu"))
    if backend == "cpu":
        raise BackendUnavailableError(
            f'{operator}: the backend "cpu" solves a head in one piece, and cannot wait for other '
            'ranks between iterations; choose backend="auto"'
        )
    return "streaming" if backend == "auto" else backend


def agree(
    ranks: RankGroup,
    check: Callable[[], dict[str, Any]],
    numbers: Callable[[], Sequence[int]],
    device: torch.device,
) -> list[list[int]]:
    """Check the arguments of this rank, tell the others, and raise with them if any is wrong.

    Args:
        ranks: who takes part.
        check: raises what is wrong here, or returns what must be alike on all ranks.
        numbers: what may differ; all zero if something is wrong.
        device: where collectives work.
    """
    facts: dict[str, Any] = {}
    error: Exception | None = None
    found: Sequence[int] = (0, 0, 0, 0)
    try:
        facts, found = check(), numbers()
    except Exception as raised:
        error = raised
    return ranks.agree(facts, found, error, device)


def check_pairs(
    operator: str,
    batch: torch.Size,
    like: Tensor,
    n: int,
    m: int,
    pairs: ScoreOptions,
    options: BalanceOptions,
) -> dict[str, Any]:
    """Check what can be checked on one rank; return what must be alike on all.

    A mask has a column for every key of every rank: how many these are is not known here yet.
    """
    mask, device = pairs.mask, like.device
    if mask is not None:
        width = mask.shape[-1] if isinstance(mask, Tensor) and mask.ndim else m
        inputs.check_mask(operator, mask, (*batch, n, width), device)
    pose_padding(operator, (*batch, n, m), device, pairs, None)
    inputs.check_eps(operator, pairs.eps, batch, device)
    inputs.check_scale(operator, pairs.scale)
    check_balance(operator, batch, n, m, like, options)
    named = {**pairs._asdict(), **options._asdict()}
    del named["shards"]
    facts: dict[str, Any] = {"leading axes": tuple(batch), "dtype": like.dtype}
    for name, option in named.items():
        facts[name] = _fact(name, option)
    facts["torch.is_grad_enabled()"] = torch.is_grad_enabled()
    return facts


def tokens_fact(tokens: Tensor) -> str:
    """What must be alike of tokens: all but their number."""
    *leading, _, features = tokens.shape
    grad = ", requires grad" if tokens.requires_grad else ""
    return f"{(*leading, '...', features)} {tokens.dtype}{grad}"


def _fact(name: str, option: Any) -> str:
    """An option that is a number is told whole, a tensor that belongs to tokens by its kind."""
    if not isinstance(option, Tensor):
        return str(option)
    grad = ", requires grad" if option.requires_grad else ""
    if name in ("lam", "eps", "omega"):
        return f"{option.detach().tolist()}{grad}"
    # axes of tokens differ between ranks
    own = {"mask": 2}.get(name, 1)
    return f"{option.dtype} with leading axes {tuple(option.shape[:-own])}{grad}"


def mask_numbers(mask: Mask | None) -> tuple[int, int]:
    """The last two axes of a mask: 1 where it has none, 0 if there is no mask."""
    if mask is None:
        return 0, 0
    return mask.shape[-2] if mask.ndim > 1 else 1, mask.shape[-1] if mask.ndim else 1


def share_mask(
    ranks: RankGroup, mask: Mask | None, table: list[list[int]], keys: int
) -> Mask | None:
    """A mask whose gradient is whole where all ranks have the same row of it.

    The table has for each rank its rows, its keys, and the last two axes of its mask.
    """
    if mask is None:
        return None
    for rank, (_, _, _, width) in enumerate(table):
        if width not in (1, keys):
            raise ValueError(
                f"{ranks.operator}: expected a mask with a column for each of the {keys} keys of "
                f"all ranks, got {width} columns on rank {rank}"
            )
    is_shared = all(row[2] == 1 for row in table) and any(row[0] > 1 for row in table)
    is_shared = is_shared or mask.ndim < 2
    if is_shared and mask.requires_grad:
        return ranks.replicated(mask)
    return mask
