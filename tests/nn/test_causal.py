"""Causal balance as a module: it learns an elasticity per head, and goes on from a state."""

import pytest
import torch

import bistoch
from bistoch.nn import Attention, CausalElastic, build_operator
from bistoch.testing import assert_causal


def tokens(n=11, heads=3):
    return torch.randn(3, 2, heads, n, 4, dtype=torch.float64).unbind()


def test_a_learned_elasticity_starts_as_causal_softmax_and_moves():
    q, k, v = tokens()
    operator = build_operator("causal_elastic(learn='head', block=2)", heads=3)
    free = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(operator(q, k, v), free)
    goal = torch.tensor([0.0, 0.4, 0.9])
    wanted = bistoch.causal_elastic_attention(q, k, v, lam=goal, block=2)
    optimiser = torch.optim.Adam(operator.parameters(), lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        (operator(q, k, v) - wanted).square().sum().backward()
        optimiser.step()
    torch.testing.assert_close(operator.lam.detach().clamp(0, 1), goal, atol=0.05, rtol=0)


def test_steps_are_the_call():
    q, k, v = tokens()
    operator = CausalElastic(lam=torch.tensor([0.2, 0.5, 1.0]), learn="head", heads=3, block=3)
    real = torch.arange(11) >= torch.tensor([[4], [0]])
    rows, state = operator.step(q[..., :5, :], k, v, key_mask=real[:, None])
    rest, _ = operator.step(q[..., 5:, :], k, v, state, key_mask=real[:, None])
    wanted = operator(q, k, v, key_mask=real[:, None])
    torch.testing.assert_close(torch.cat([rows, rest], -2), wanted)
    torch.testing.assert_close(operator.plan(q, k, key_mask=real[:, None]) @ v, wanted)


def test_a_layer_is_causal_without_a_mask():
    layer = Attention(12, heads=3, operator="causal_elastic(lam=0.7, block=4)")
    assert_causal(layer, torch.randn(2, 13, 12))
    assert repr(layer.operator) == "causal_elastic(lam=0.7, block=4)"


def test_mistakes_are_sentences():
    with pytest.raises(ValueError, match="CausalElastic: learn='head' needs heads"):
        CausalElastic(learn="head")
    with pytest.raises(ValueError, match="learn must be one of"):
        CausalElastic(learn="token")
    with pytest.raises(TypeError, match="unknown option 'iters'"):
        build_operator("causal_elastic(iters=3)", heads=2)
