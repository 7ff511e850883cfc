"""Unitary matrices from Hermitian ones: the Cayley transform and the exponential."""

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.autograd import forward_ad


def hermitian(scores: Float[Tensor, "B n n"]) -> Complex[Tensor, "B n n"]:
    """The Hermitian matrix with as many free numbers as the scores, and nothing lost.

        H = (S + S^T)/2 + i (S - S^T)/2

    >>> hermitian(torch.tensor([[[1.0, 4.0], [2.0, 0.0]]]))
    tensor([[[1.+0.j, 3.+1.j],
             [3.-1.j, 0.+0.j]]])
    """
    return torch.complex((scores + scores.mT) / 2, (scores - scores.mT) / 2)


def cayley(generator: Complex[Tensor, "B n n"]) -> Complex[Tensor, "B n n"]:
    """The unitary matrix `(1 + iH/2) / (1 - iH/2)`, which is `exp(iH)` up to third order.

    >>> cayley(torch.zeros(1, 2, 2, dtype=torch.complex64)).real
    tensor([[[1., 0.],
             [0., 1.]]])
    """
    # an inverse loses as many digits as H has before the point; the double of float32 has them
    long = generator.to(torch.complex128)
    identity = torch.eye(long.shape[-1], dtype=long.dtype, device=long.device)
    # (1 + x)/(1 - x) = 2/(1 - x) - 1
    unitary = 2 * torch.linalg.inv(identity - 0.5j * long) - identity
    if generator.dtype == long.dtype:
        # and the double has no double: one step of Newton's towards the nearest unitary matrix
        # repairs rounding, which has no slope
        near = unitary.detach()
        unitary = unitary + near @ (identity - near.mH @ near) / 2
    return unitary.to(generator.dtype)


def exponential(generator: Complex[Tensor, "B n n"]) -> Complex[Tensor, "B n n"]:
    """The unitary matrix `exp(iH)`, by the eigenvectors of H.

    However large H is, the result is unitary to rounding, which repeated squaring is not.

    >>> exponential(torch.full((1, 1, 1), torch.pi, dtype=torch.complex64)).real
    tensor([[[-1.]]])
    """
    if forward_ad._current_level >= 0:
        # only backward-mode derivatives are known to the operator below
        return torch.linalg.matrix_exp(1j * generator)
    return _exponential(generator)[0]


# a custom operator, because the derivative of eigenvectors is infinite where eigenvalues meet,
# and that of exp(iH) is not
@torch.library.custom_op("bistoch::unitary_exponential", mutates_args=())
def _exponential(generator: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(generator)
    return (vectors * torch.exp(1j * values)[..., None, :]) @ vectors.mH, values, vectors


@_exponential.register_fake
def _(generator):
    values = generator.new_empty(generator.shape[:-1], dtype=generator.real.dtype)
    return torch.empty_like(generator), values, torch.empty_like(generator)


@torch.library.custom_op("bistoch::unitary_exponential_backward", mutates_args=())
def _exponential_backward(slope: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
    # the divided differences (e^ix - e^iy)/(x - y) = i e^(i(x+y)/2) sin(z)/z, z = (x-y)/2
    mean = (values[..., :, None] + values[..., None, :]) / 2
    half = (values[..., :, None] - values[..., None, :]) / 2
    differences = 1j * torch.exp(1j * mean) * torch.sinc(half / torch.pi)
    return vectors @ (differences.conj() * (vectors.mH @ slope @ vectors)) @ vectors.mH


@_exponential_backward.register_fake
def _(slope, values, vectors):
    return torch.empty_like(slope)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx, slope, *_):
    return _exponential_backward(slope, *ctx.saved_tensors)


_exponential.register_autograd(_differentiate, setup_context=_save)
