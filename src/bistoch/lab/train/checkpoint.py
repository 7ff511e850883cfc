"""Checkpoints: one safetensors file with all tensors of a run, and its state as JSON inside.

One file, because a file can be replaced in one step: a killed run leaves the checkpoint before or
the one after, never a mixture. A checksum over everything shows a damaged file.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bistoch.lab.files import write_whole
from bistoch.lab.train.ranks import sharded_as, whole

FORMAT = 1
ADAM_STATE = {"step", "exp_avg", "exp_avg_sq"}


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message says why and what to do."""


@dataclass
class State:
    """The state of a run besides its tensors.

    `total` and `count` are the sum of the losses and the samples of the epoch so far. `curve` has
    one row of metrics per finished epoch. `best` is the best validation score so far (negative if
    smaller is better) and `best_epoch` its epoch, counted from one. `finished` is empty while the
    run is not finished, then why it ended.
    """

    step: int = 0
    total: float = 0.0
    count: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    best: float | None = None
    best_epoch: int = 0
    seconds: float = 0.0
    finished: str = ""


def tensors_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    best: dict[str, Tensor],
    *,
    kept: bool = True,
) -> dict[str, Tensor]:
    """All tensors of a run, whole and on the CPU, so that any number of processes can resume.

    Shards are put together by all processes; those that do not write, `kept=False`, keep nothing.
    """
    tensors = {f"model.{name}": x for name, x in model.state_dict().items()}
    tensors |= {f"best.{name}": x for name, x in best.items()}
    for number, values in optimizer.state_dict()["state"].items():
        for name, x in values.items():
            if x is not None:
                tensors[f"optimizer.{number}.{name}"] = torch.as_tensor(x)
    found = {}
    for name, x in tensors.items():
        x = whole(x.detach())
        if kept:
            # tied weights are written twice: safetensors refuses memory that is shared
            found[name] = x.cpu().clone().contiguous()
    return found


def save_checkpoint(path: Path, state: State, tensors: dict[str, Tensor]) -> None:
    """Write a checkpoint; the one before stays until the new one is whole."""
    text = json.dumps({"format": FORMAT, **asdict(state)})
    metadata = {"state": text, "sha256": _digest(tensors, text)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, import_safetensors().save(tensors, metadata))


def load_checkpoint(path: Path) -> tuple[State, dict[str, Tensor]]:
    """Read a checkpoint: its state, and its tensors under the names they were written with."""
    content = path.read_bytes()
    safetensors = import_safetensors()
    try:
        size = int.from_bytes(content[:8], "little")
        metadata: dict[str, Any] = json.loads(content[8 : 8 + size])["__metadata__"]
        tensors = safetensors.load(content)
        text, digest = metadata["state"], metadata["sha256"]
        json.loads(text)
    except Exception as error:
        raise damaged(path, f"it cannot be read ({type(error).__name__})") from None
    if digest != _digest(tensors, text):
        raise damaged(path, "its content does not match its checksum")
    return _read_state(path, text), tensors


def _read_state(path: Path, text: str) -> State:
    """The state of a run; its checksum proves that it is whole, not that it makes sense."""
    found = json.loads(text)
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        raise damaged(path, "it was written by another version")
    try:
        state = State(**found)
        counts = (state.step, state.count, state.best_epoch)
        numbers = [state.total, state.seconds, *(x for row in state.curve for x in row.values())]
        is_right = (
            all(type(x) is int and x >= 0 for x in counts)
            and all(math.isfinite(x) for x in (*numbers, state.best or 0))
            and state.best_epoch <= len(state.curve)
            and (state.best is None) == (state.best_epoch == 0)
            and isinstance(state.finished, str)
            and bool(state.curve or not state.finished)
        )
    except (AttributeError, TypeError):
        is_right = False
    if not is_right:
        raise damaged(path, "its state holds values that no run can have")
    return state


def damaged(path: Path, why: str) -> CheckpointError:
    """The error for a file that is no usable checkpoint."""
    return CheckpointError(
        f"{path} is damaged or no checkpoint of bistoch: {why}; remove it to train from the start"
    )


def restore(
    path: Path, tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Load the tensors of a checkpoint into model and optimizer; returns the best weights.

    Where those are sharded, every process takes its own part.
    """
    load_weights(path, tensors, model, "model")
    best = part(tensors, "best")
    if best:
        _check_fits(path, best, model)
        best = _sharded(best, model)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    keys = {"momentum_buffer"} if isinstance(optimizer, torch.optim.SGD) else ADAM_STATE
    state: dict[int, dict[str, Tensor]] = {}
    for name, x in part(tensors, "optimizer").items():
        number, _, key = name.partition(".")
        known = number.isdecimal() and int(number) < len(parameters) and key in keys
        if not known or x.shape not in ((), parameters[int(number)].shape):
            raise damaged(path, f"the optimizer has no {name} of the shape {tuple(x.shape)}")
        like = parameters[int(number)]
        state.setdefault(int(number), {})[key] = sharded_as(like, x) if x.ndim else x
    if any(values.keys() != keys for values in state.values()):
        raise damaged(path, "a part of the optimizer's state is missing")
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return best


def load_weights(path: Path, tensors: dict[str, Tensor], model: nn.Module, kind: str) -> None:
    """Load weights into a model: "model" for the last ones, "best" for the best ones."""
    weights = part(tensors, kind)
    _check_fits(path, weights, model)
    model.load_state_dict(_sharded(weights, model))


def _sharded(weights: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    wanted = model.state_dict()
    return {name: sharded_as(wanted[name], x) for name, x in weights.items()}


def _check_fits(path: Path, weights: dict[str, Tensor], model: nn.Module) -> None:
    wanted = model.state_dict()
    wrong = sorted(weights.keys() ^ wanted.keys()) or sorted(
        name for name, x in weights.items() if x.shape != wanted[name].shape
    )
    if wrong:
        raise CheckpointError(
            f"{path} belongs to another model: {wrong[0]} does not fit, one of {len(wrong)} "
            "tensors; use a separate folder for every model"
        )


def part(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The tensors of a kind, without the prefix of their names.

    >>> part({"model.a": torch.zeros(1), "best.a": torch.ones(1)}, "best")
    {'a': tensor([1.])}
    """
    prefix = f"{kind}."
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def import_safetensors() -> Any:
    """The package safetensors.torch, or an error that names the extra to install."""
    try:
        import safetensors.torch
    except ImportError:
        raise ImportError(
            'checkpoints need safetensors; install it with: pip install "bistoch[lab]"'
        ) from None
    return safetensors.torch


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        x = tensors[name]
        found.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        found.update(x.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
