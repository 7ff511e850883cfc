"""The circuit that learns its theta."""

import pytest
import torch

import bistoch
from bistoch.nn import Quantum


def tokens(*batch, n=5, dtype=torch.float64):
    return torch.randn(3, *batch, n, 4, dtype=dtype).unbind()


def test_it_starts_as_the_fixed_circuit():
    q, k, v = tokens(2, 3)
    learned = Quantum(learn="head", heads=3, tokens=5)
    torch.testing.assert_close(learned(q, k, v), Quantum()(q, k, v), rtol=0, atol=1e-6)
    assert list(learned.state_dict()) == ["theta"]
    assert not list(Quantum().parameters())


def test_every_head_has_a_theta_of_its_own():
    q, k, v = tokens(2, 3)
    learned = Quantum(learn="head", heads=3, tokens=5).double()
    before = learned(q, k, v)
    with torch.no_grad():
        learned.theta[1] *= -0.5
    after = learned(q, k, v)
    changed = [(after - before)[:, head].abs().max() > 1e-3 for head in range(3)]
    assert changed == [False, True, False]


def test_theta_moves_towards_what_the_data_wants():
    q, k, v = tokens(3, 2)
    teacher = Quantum(learn="head", heads=2, tokens=5, layers=1, ansatz="simple").double()
    learned = Quantum(learn="head", heads=2, tokens=5, layers=1, ansatz="simple").double()
    with torch.no_grad():
        teacher.theta += 0.3 * torch.randn_like(teacher.theta)
    optimiser = torch.optim.Adam(learned.parameters(), lr=0.03)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = (learned(q, k, v) - teacher(q, k, v).detach()).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_one_circuit_serves_shorter_sequences():
    learned = Quantum(learn="head", heads=2, tokens=7, layers=1)
    for n in (1, 3, 7):
        q, k, _ = tokens(2, n=n, dtype=torch.float32)
        plan = learned.plan(q, k)
        for axis in (-1, -2):
            torch.testing.assert_close(plan.sum(axis), torch.ones(2, n), rtol=0, atol=1e-6)
    q, k, v = tokens(2, n=9, dtype=torch.float32)
    with pytest.raises(ValueError, match="3 of them count 8, and there are 9; take 4"):
        learned(q, k, v)


def test_it_fits_into_a_layer():
    text = "quantum(learn='head', tokens=8, layers=1)"
    layer = bistoch.nn.Attention(12, heads=3, operator=text)
    x = torch.randn(2, 6, 12)
    real = torch.arange(6) < torch.tensor([[6], [4]])
    layer(x, key_mask=real).sum().backward()
    assert layer.operator.theta.shape == (3, 64)
    assert layer.operator.theta.grad.abs().max() > 0
    torch.testing.assert_close(layer(x, key_mask=real)[1, :4], layer(x[1:, :4])[0])


@pytest.mark.parametrize("operator", ["orthogonal", "quantum(tokens=8)"])
def test_padding_is_invisible_in_the_layer_of_torch(operator):
    layer = bistoch.nn.MultiheadAttention(12, 3, batch_first=True, operator=operator)
    x = torch.randn(2, 6, 12)
    padding = torch.arange(6) >= torch.tensor([[6], [4]])
    together, plan = layer(x, x, x, key_padding_mask=padding)
    one = x[1:, :4]
    torch.testing.assert_close(together[1, :4], layer(one, one, one)[0][0])
    assert not plan[1, :, 4:].any()


@pytest.mark.parametrize(("options", "error", "sentence"), [
    ({"learn": "all"}, ValueError, "Quantum: learn must be one of 'none', 'head', but"),
    ({"learn": "head"}, ValueError, "Quantum: learn='head' needs heads, the number"),
    ({"learn": "head", "heads": 2}, ValueError, "Quantum: learn='head' needs tokens, the longest"),
    ({"learn": "head", "heads": 0, "tokens": 4}, ValueError, "Quantum: heads must be at least 1"),
    ({"tokens": 0}, ValueError, "Quantum: tokens must be at least 1"),
    ({"learn": "head", "heads": 2, "tokens": 4, "ansatz": "deep"}, ValueError,
     "Quantum: ansatz must be one of 'simple', 'parted'"),
])  # fmt: skip
def test_mistakes_are_named(options, error, sentence):
    with pytest.raises(error, match=sentence):
        Quantum(**options)
