"""Whether it matters where a layer attends."""

import pytest
import torch
from torch import nn

import bistoch
from bistoch.analysis import attention_influence, balanced_layers, influence_warning
from bistoch.analysis.influence import _unevenness


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


def test_a_plan_that_does_not_look_at_tokens_is_left_out():
    model, x = Pooled("softmax", depth=2), torch.randn(3, 7, 16)
    model.layers[0].operator = bistoch.nn.Mixing(tokens=7)
    assert list(attention_influence(model, x)) == ["layers.1"]
    assert balanced_layers(model, x) == []


def test_what_results_share_is_not_counted():
    class Lifted(Pooled):
        def forward(self, x):
            return super().forward(x) + 1000

    torch.manual_seed(0)
    plain, lifted = Pooled("softmax").double(), Lifted("softmax").double()
    lifted.load_state_dict(plain.state_dict())
    x = torch.randn(3, 7, 16).double()
    found = [attention_influence(model, x)["layers.0"] for model in (plain, lifted)]
    assert found[1] == pytest.approx(found[0], rel=1e-9)
    # one sample has no spread, and neither have samples that are alike
    for few in (x[:1], x[:1].expand(3, 7, 16)):
        assert 0 < attention_influence(lifted, few)["layers.0"] < 1e-3 * found[0] < 1


def test_a_cause_is_named_only_where_columns_are_balanced():
    torch.manual_seed(0)
    x = torch.randn(3, 7, 16)
    for operator, balanced in (("softmax", []), ("sinkhorn", ["layers.0"]), ("elastic(lam=0)", [])):
        model = Pooled(operator)
        # large enough for uneven columns where the operator leaves them free
        nn.init.normal_(model.layers[0].query.weight, std=0.5)
        assert balanced_layers(model, x) == balanced
    # without keys a plan is uniform, and its columns are even whatever the operator is
    for operator, known in (("softmax", False), ("sinkhorn", True)):
        model = Pooled(operator)
        nn.init.zeros_(model.layers[0].key.weight)
        sentence = influence_warning(attention_influence(model, x), balanced_layers(model, x))
        assert sentence.startswith("Where layers.0 attends changes the result by less than 0.1 %")
        assert ("a mean over tokens" in sentence) == known
    real = torch.arange(7) < 5
    padded = bistoch.sinkhorn_plan(x, x, iters=1000, query_mask=real, key_mask=real)
    assert _unevenness(padded) < 1e-4


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
