"""The two ends of the forecaster: read step by step, or as one matrix for all windows of a batch.

Learned factors, the change of axes and the linear layer that follow each other are all linear, so
their product can be multiplied out before it meets a window. Results are equal up to rounding.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from bistoch.nn import OrthoTrans


def embed(
    x: Float[Tensor, "b channels lookback"],
    factors: Float[Tensor, "extend 1"],
    axes: OrthoTrans,
    shift: Float[Tensor, "channels 1 lookback"],
    layer: nn.Linear,
) -> Float[Tensor, "b channels dim"]:
    """Windows times learned factors, in the new axes, shifted, and through a linear layer."""
    extended = factors * x.unsqueeze(-2)
    return layer((axes(extended) + shift).flatten(-2))


def embed_folded(
    x: Float[Tensor, "b channels lookback"],
    factors: Float[Tensor, "extend 1"],
    axes: OrthoTrans,
    shift: Float[Tensor, "channels 1 lookback"],
    layer: nn.Linear,
) -> Float[Tensor, "b channels dim"]:
    """The same as `embed`, with one matrix, and one offset per channel.

    W' = (sum_e factor_e W_e) Q,    offset = (sum_e W_e) shift + bias
    """
    weight = layer.weight.unflatten(-1, (len(factors), -1))
    # both sums in one product, (dim, 2, lookback)
    sums = torch.stack((factors.squeeze(-1), torch.ones_like(factors).squeeze(-1))) @ weight
    matrix, total = sums.unbind(1)
    return linear(x, axes.inverse(matrix)) + linear(shift.squeeze(1), total, layer.bias)


def read_out(
    x: Float[Tensor, "b channels dim"],
    unfold: nn.Linear,
    axes: OrthoTrans,
    shift: Float[Tensor, "channels 1 horizon"],
    layer: nn.Linear,
) -> Float[Tensor, "b channels hidden"]:
    """Features of channels as windows in the new axes, back to time, through a linear layer."""
    windows = unfold(x).unflatten(-1, (-1, shift.shape[-1]))
    return layer((axes.inverse(windows) + shift).flatten(-2))


def read_out_folded(
    x: Float[Tensor, "b channels dim"],
    unfold: nn.Linear,
    axes: OrthoTrans,
    shift: Float[Tensor, "channels 1 horizon"],
    layer: nn.Linear,
) -> Float[Tensor, "b channels hidden"]:
    """The same as `read_out`, with one matrix, and one offset per channel.

    W' = sum_e V_e Q^T U_e,    offset = sum_e V_e (Q^T bias_e + shift) + bias
    """
    horizon = shift.shape[-1]
    outer = axes(layer.weight.unflatten(-1, (-1, horizon))).flatten(-2)
    level = axes.inverse(unfold.bias.unflatten(-1, (-1, horizon))) + shift
    return linear(x, outer @ unfold.weight) + layer(level.flatten(-2))


def folding_pays(rows: int, extend: int, horizon: int, dim: int, hidden: int) -> bool:
    """Whether `read_out_folded` takes fewer multiplications than `read_out` for so many rows.

    >>> folding_pays(224, 16, 96, 128, 128), folding_pays(224, 16, 96, 512, 512)
    (True, False)
    """
    plain = rows * extend * horizon * (dim + horizon + hidden)
    return extend * horizon * dim * (horizon + hidden) + rows * dim * hidden < plain
