import pytest
import torch

from bistoch.nn.unit_interval import clamp_to_unit


def gradient(x, grad):
    x = torch.tensor([x], requires_grad=True)
    clamp_to_unit(x).backward(torch.tensor([grad]))
    return x.grad.item()


@pytest.mark.parametrize("x", [-7.0, -1e-3, 0.0, 1e-3, 0.5, 1.0, 1.001, 7.0])
def test_the_value_is_clamped(x):
    assert clamp_to_unit(torch.tensor(x)).item() == pytest.approx(min(max(x, 0.0), 1.0))


@pytest.mark.parametrize("grad", [-2.0, 2.0])
def test_inside_the_gradient_passes(grad):
    assert gradient(0.3, grad) == grad


@pytest.mark.parametrize("x", [0.0, -0.25])
def test_at_or_below_zero_only_a_step_upwards_passes(x):
    assert gradient(x, -2.0) == -2.0
    assert gradient(x, 2.0) == 0.0


@pytest.mark.parametrize("x", [1.0, 1.25])
def test_at_or_above_one_only_a_step_downwards_passes(x):
    assert gradient(x, 2.0) == 2.0
    assert gradient(x, -2.0) == 0.0


@pytest.mark.parametrize(("start", "target"), [(-0.5, 0.3), (1.5, 0.7), (0.0, 0.9), (1.0, 0.1)])
def test_what_overshot_comes_back(start, target):
    x = torch.tensor(start, requires_grad=True)
    optimiser = torch.optim.SGD([x], lr=0.1)
    for _ in range(100):
        optimiser.zero_grad()
        (clamp_to_unit(x) - target).square().backward()
        optimiser.step()
    assert x.item() == pytest.approx(target, abs=1e-3)


@pytest.mark.parametrize(("start", "target"), [(0.2, -3.0), (0.8, 4.0)])
def test_a_target_outside_never_pushes_further_than_one_step(start, target):
    x = torch.tensor(start, requires_grad=True)
    optimiser = torch.optim.SGD([x], lr=0.05)
    for _ in range(50):
        optimiser.zero_grad()
        (clamp_to_unit(x) - target).square().backward()
        optimiser.step()
    # the last step that started inside is at most 0.05 * 2 * |1 - 4|
    assert -0.4 < x.item() < 1.4


def test_the_custom_operator_is_registered_completely():
    x = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0], requires_grad=True)
    torch.library.opcheck(torch.ops.bistoch.clamp_to_unit, (x,))
