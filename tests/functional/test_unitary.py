import pytest
import torch

from bistoch.functional.unitary import cayley, exponential, hermitian


def generators(*batch, n=5, size=1.0):
    return hermitian(size * torch.randn(*batch, n, n, dtype=torch.float64))


def test_nothing_of_the_scores_is_lost():
    scores = torch.randn(2, 5, 5, dtype=torch.float64)
    matrix = hermitian(scores)
    torch.testing.assert_close(matrix, matrix.mH)
    torch.testing.assert_close(matrix.real + matrix.imag, scores)


def test_the_exponential_is_that_of_torch():
    matrix = generators(3)
    torch.testing.assert_close(exponential(matrix), torch.linalg.matrix_exp(1j * matrix))


def test_the_cayley_transform_is_its_quotient():
    matrix, identity = generators(3), torch.eye(5, dtype=torch.complex128)
    quotient = torch.linalg.solve(identity - 0.5j * matrix, identity + 0.5j * matrix)
    torch.testing.assert_close(cayley(matrix), quotient)


def test_the_two_agree_to_third_order():
    matrix = generators(1)
    gaps = [(cayley(t * matrix) - exponential(t * matrix)).abs().max() for t in (0.02, 0.01)]
    assert gaps[0] / gaps[1] == pytest.approx(8, rel=0.02)


@pytest.mark.parametrize("unitary", [cayley, exponential])
@pytest.mark.parametrize("size", [0.0, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_unitary_for_any_size(unitary, size, dtype):
    matrix = unitary(generators(2, n=13, size=size).to(dtype))
    identity = torch.eye(13, dtype=dtype).expand(2, 13, 13)
    tolerance = 25 * torch.finfo(dtype).eps
    torch.testing.assert_close(matrix @ matrix.mH, identity, atol=tolerance, rtol=0)


@pytest.mark.parametrize("unitary", [cayley, exponential])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_unitary_for_large_scores_of_low_rank(unitary, dtype):
    q, k = torch.randn(2, 50, 3, 1, dtype=torch.float64) * 150
    matrix = unitary(hermitian(q @ k.mT).to(dtype))
    off = matrix @ matrix.mH - torch.eye(3, dtype=dtype)
    assert off.abs().max() < 25 * torch.finfo(dtype).eps


@pytest.mark.parametrize("unitary", [cayley, exponential])
def test_the_derivative_where_eigenvalues_meet(unitary):
    # rank two: three eigenvalues are zero
    left, right = torch.randn(2, 5, 2, dtype=torch.float64).unbind()
    for scores in (left @ right.T, torch.zeros(5, 5, dtype=torch.float64)):
        scores.requires_grad_()
        assert torch.autograd.gradcheck(lambda s: unitary(hermitian(s[None])), (scores,))


# torch's own rules of forward mode are scripts
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_forward_mode():
    scores, direction = torch.randn(2, 1, 4, 4, dtype=torch.float64).unbind()
    found = torch.func.jvp(lambda s: exponential(hermitian(s)).real, (scores,), (direction,))[1]
    steps = [exponential(hermitian(scores + h * direction)).real for h in (1e-6, -1e-6)]
    torch.testing.assert_close(found, (steps[0] - steps[1]) / 2e-6, atol=1e-8, rtol=1e-6)
