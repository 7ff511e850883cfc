"""What every check of a tensor asks: its kind, its shape, its place."""

import torch
from torch import Tensor


def check_floating(operator: str, name: str, tensor: Tensor, *, axes: str, rank: int) -> None:
    """Check that an argument is a real floating-point tensor with at least `rank` axes."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{operator}: {name} must be a torch.Tensor of shape {axes}, "
            f"but it is a {type(tensor).__name__}; wrap it with torch.as_tensor"
        )
    if not tensor.is_floating_point():
        raise TypeError(
            f"{operator}: {name} must be a floating-point tensor, but its dtype is "
            f"{tensor.dtype}; convert it, for example {name}.float()"
        )
    if tensor.ndim < rank:
        raise ValueError(
            f"{operator}: {name} must have at least {rank} axes, {axes}, "
            f"but its shape is {tuple(tensor.shape)}; add an axis with unsqueeze"
        )


def check_broadcast(operator, name, tensor, shape, meaning) -> None:
    wanted = torch.Size(shape)
    try:
        fits = torch.broadcast_shapes(tensor.shape, wanted) == wanted
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{operator}: {name} must broadcast to {meaning} {tuple(wanted)}, "
            f"but its shape is {tuple(tensor.shape)}; insert axes of size one where it is shared"
        )


def check_device(operator, name, tensor, device) -> None:
    if tensor.device != device:
        raise ValueError(
            f"{operator}: {name} must be on the device of the other tensors, {device}, "
            f"but it is on {tensor.device}; move it with {name}.to({str(device)!r})"
        )


def is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def kind(value) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of dtype {value.dtype}"
    return f"a {type(value).__name__}"


def values_are_at_hand(tensor: Tensor) -> bool:
    # reading a value would break a compiled graph, and would stall an accelerator
    return not torch.compiler.is_compiling() and tensor.device.type == "cpu" and tensor.numel() > 0
