"""What every check of a tensor asks: its kind, its shape, its place."""

from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor


def check_dense(operator: str, name: str, tensor: Tensor, wanted: str) -> None:
    """Check that an argument is a tensor, neither sparse nor nested."""
    if not isinstance(tensor, Tensor):
        remedy = "pass a tensor" if tensor is None else "make one with torch.as_tensor"
        raise TypeError(f"{operator}: {name} must be {wanted}, but it is {kind(tensor)}; {remedy}")
    if tensor.is_nested:
        raise TypeError(
            f"{operator}: {name} must be {wanted}, but it is a nested tensor; pad it with "
            f"{name}.to_padded_tensor(0.0), and say which tokens are real with query_mask and "
            "key_mask"
        )
    if tensor.layout != torch.strided:
        raise TypeError(
            f"{operator}: {name} must be {wanted}, but its layout is {tensor.layout}; convert it "
            f"with {name}.to_dense()"
        )


def check_floating(operator: str, name: str, tensor: Tensor, *, axes: str, rank: int) -> None:
    """Check that an argument is a real floating-point tensor with at least `rank` axes."""
    check_dense(operator, name, tensor, f"a torch.Tensor of shape {axes}")
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


def check_width(operator: str, name: str, tensor: Tensor, features: int) -> None:
    """Check that the last axis has as many features as a layer was made for."""
    if tensor.shape[-1] != features:
        raise ValueError(
            f"{operator}: {name} must have {features} features (its last axis), but its shape is "
            f"{tuple(tensor.shape)}; build the layer for {tensor.shape[-1]} or project {name} first"
        )


def check_broadcast(
    operator: str,
    name: str,
    tensor: Tensor,
    shape: Sequence[int],
    meaning: str,
    remedy: str | None = None,
) -> None:
    """Check that a tensor broadcasts to a shape, and does not make it larger."""
    wanted = torch.Size(shape)
    try:
        fits = torch.broadcast_shapes(tensor.shape, wanted) == wanted
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{operator}: {name} must broadcast to {meaning} {tuple(wanted)}, "
            f"but its shape is {tuple(tensor.shape)}; "
            + (remedy or "insert axes of size one where it is shared")
        )


def check_device(operator: str, name: str, tensor: Tensor, device: torch.device) -> None:
    """Check that a tensor is where the others are."""
    if tensor.device != device:
        raise ValueError(
            f"{operator}: {name} must be on the device of the other tensors, {device}, "
            f"but it is on {tensor.device}; move it with {name}.to({str(device)!r})"
        )


def is_number(value) -> bool:
    """Whether this is a real number, Python's or numpy's; True and False are none."""
    # the abstract class last: it is slow to ask
    return isinstance(value, (int, float, Real)) and not isinstance(value, bool)


def as_number(value):
    """Numbers of numpy as Python's, which have all digits; anything else as it is."""
    if isinstance(value, int | float | Tensor) or not isinstance(value, Real):
        return value
    return float(value)


def kind(value) -> str:
    """What kind of thing this is, in the words of an error sentence."""
    if isinstance(value, Tensor):
        return f"a tensor of dtype {value.dtype}"
    return "None" if value is None else f"a {type(value).__name__}"


def values_are_at_hand(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor can be read at once, without waiting and without a trace."""
    # reading a value would break a compiled graph, and would stall an accelerator
    return not torch.compiler.is_compiling() and tensor.device.type == "cpu" and tensor.numel() > 0
