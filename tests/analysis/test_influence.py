"""Whether it matters where a layer attends."""

import pytest
import torch
from torch import nn

import bistoch
from bistoch.analysis import attention_influence


class Pooled(nn.Module):
    """Attention layers, a pool over tokens, and what comes between."""

    def __init__(self, operator, *, pool="mean", between=None, depth=1):
        super().__init__()
        self.layers = nn.ModuleList(
            bistoch.nn.Attention(16, 2, operator=operator) for _ in range(depth)
        )
        self.between = nn.Identity() if between is None else between
        self.pool = pool

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        x = self.between(x)
        return x.mean(-2) if self.pool == "mean" else x.amax(-2)


@pytest.mark.parametrize(
    ("model", "matters"),
    [
        (Pooled("sinkhorn(iters=1000)"), [False]),
        # without a nonlinear function between them, the mean passes through all layers
        (Pooled("sinkhorn(iters=1000)", depth=3), [False, False, False]),
        (Pooled("elastic(lam=0.5)", depth=3), [True, True, True]),
        (Pooled("softmax"), [True]),
        (Pooled("elastic(lam=0.5)"), [True]),
        (Pooled("sinkhorn(iters=1000)", pool="max"), [True]),
        (Pooled("sinkhorn(iters=1000)", between=nn.GELU()), [True]),
    ],
)
def test_a_mean_after_balance_is_found(model, matters):
    torch.manual_seed(0)
    for parameter in model.parameters():
        # layers that are far from uniform, so that it shows where they attend
        nn.init.normal_(parameter, std=0.25)
    found = attention_influence(model.double(), torch.randn(3, 7, 16).double())
    assert list(found) == [f"layers.{i}" for i in range(len(matters))]
    assert [value > 1e-3 for value in found.values()] == matters
    assert all(value > 1e-3 or value < 1e-10 for value in found.values())


def test_the_model_and_random_numbers_are_left_as_they_were():
    model, x = Pooled("softmax").train(), torch.randn(1, 5, 16)
    before, state = model(x), torch.random.get_rng_state()
    attention_influence(model, x)
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(model(x), before)


def test_a_model_without_operators_has_no_layers():
    assert attention_influence(nn.Linear(3, 3), torch.randn(2, 3)) == {}


def test_a_result_without_tensors_is_refused():
    class Silent(nn.Module):
        def forward(self, x):
            return None

    with pytest.raises(TypeError, match="attention_influence: the model returned no tensor"):
        attention_influence(Silent(), torch.randn(2, 3))
