"""Checks of predicted probabilities and of the classes that were right."""

import torch
from torch import Tensor

from bistoch.functional.inputs.tensors import (
    check_dense,
    check_device,
    check_floating,
    kind,
    values_are_at_hand,
)


def check_probabilities(function: str, probabilities: Tensor) -> None:
    """Check probabilities (*b, samples, classes): not negative, rows that sum to one."""
    axes = "(*b, samples, classes)"
    check_floating(function, "probabilities", probabilities, axes=axes, rank=2)
    if 0 in probabilities.shape[-2:]:
        raise ValueError(
            f"{function}: probabilities must have at least one sample and one class, but their "
            f"shape is {tuple(probabilities.shape)}; leave empty batches out"
        )
    if values_are_at_hand(probabilities):
        sums = probabilities.double().sum(-1)
        # half precision rounds every class
        slack = 1e-3 + probabilities.shape[-1] * torch.finfo(probabilities.dtype).eps
        if not bool((probabilities >= 0).all() and ((sums - 1).abs() <= slack).all()):
            raise ValueError(
                f"{function}: probabilities must not be negative and must sum to one in every row, "
                f"but the smallest is {probabilities.min().item():g} and rows sum to "
                f"{sums.min().item():g} ... {sums.max().item():g}; apply softmax(-1) to scores"
            )


def check_target(function: str, target: Tensor, probabilities: Tensor) -> None:
    """Check the right classes of samples: whole numbers, one for every row of probabilities."""
    shape, classes = probabilities.shape[:-1], probabilities.shape[-1]
    check_dense(function, "target", target, "a torch.Tensor of classes, (*b, samples)")
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(
            f"{function}: target must hold classes as whole numbers, but it is {kind(target)}; "
            "convert it with target.long()"
        )
    if target.shape != shape:
        raise ValueError(
            f"{function}: target must have one class per sample, {tuple(shape)}, but its shape is "
            f"{tuple(target.shape)}; pass the classes of the same samples"
        )
    check_device(function, "target", target, probabilities.device)
    if values_are_at_hand(target) and not bool(((target >= 0) & (target < classes)).all()):
        raise ValueError(
            f"{function}: target must lie in 0 ... {classes - 1}, but it reaches from "
            f"{target.min().item()} to {target.max().item()}; count classes from zero"
        )


def check_outliers(function: str, inside: Tensor, outside: Tensor) -> None:
    """Check two sets of scores, (*b, n) and (*b, m), each with at least one that is no NaN."""
    for name, scores in (("inside", inside), ("outside", outside)):
        check_floating(function, name, scores, axes="(*b, samples)", rank=1)
        if scores.shape[-1] == 0 or (values_are_at_hand(scores) and bool(scores.isnan().any())):
            raise ValueError(
                f"{function}: {name} must hold at least one score and no NaN, but its shape is "
                f"{tuple(scores.shape)}; leave samples without a score out"
            )
    check_device(function, "outside", outside, inside.device)
    if inside.shape[:-1] != outside.shape[:-1]:
        raise ValueError(
            f"{function}: inside and outside must have the same leading axes, but their shapes are "
            f"{tuple(inside.shape)} and {tuple(outside.shape)}; give one pair of sets per problem"
        )
