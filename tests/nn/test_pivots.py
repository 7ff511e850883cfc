import pytest
import torch

import bistoch
from bistoch.nn import Attention, LowRank, build_operator


def tokens(*batch, n=7, m=5, d=4, e=2):
    shapes = (n, d), (m, d), (m, e)
    return [torch.randn(*batch, *shape, dtype=torch.float64) for shape in shapes]


def test_text_in_a_layer_makes_pivots_for_its_heads():
    layer = Attention(14, heads=7, operator="lowrank(rank=8)")
    assert layer.operator.pivots.shape == (7, 8, 2)
    assert "operator.pivots" in dict(layer.named_parameters())
    layer(torch.randn(2, 9, 14)).square().sum().backward()
    assert layer.operator.pivots.grad.abs().amax((-2, -1)).min() > 0
    ours = bistoch.nn.MultiheadAttention(14, num_heads=7, operator="lowrank")
    assert ours.operator.pivots.shape == (7, 16, 2)


def test_every_head_has_its_own_pivots_and_options_arrive():
    q, k, v = tokens(2, 3)
    module = LowRank(rank=5, lam=0.4, eps=0.7, iters=3, scale=0.9, heads=3, size=4)
    module.double()
    with torch.no_grad():
        module.pivots.normal_()
    options = {"pivots": module.pivots, "lam": 0.4, "eps": 0.7, "iters": 3, "scale": 0.9}
    torch.testing.assert_close(module(q, k, v), bistoch.lowrank_attention(q, k, v, **options))
    torch.testing.assert_close(module.plan(q, k), bistoch.lowrank_plan(q, k, **options))
    one = bistoch.lowrank_attention(
        q[:, 1], k[:, 1], v[:, 1], **options | {"pivots": module.pivots[1]}
    )
    torch.testing.assert_close(module(q, k, v)[:, 1], one)


def test_masses_can_be_learned_and_rows_stay_exact():
    q, k, v = tokens(2, 3)
    module = LowRank(rank=5, learn_mass=True, heads=3, size=4)
    torch.testing.assert_close(module(q, k, v), LowRank(rank=5, heads=3, size=4)(q, k, v))
    assert set(module.state_dict()) == {"pivots", "log_mass"}
    with torch.no_grad():
        module.log_mass.copy_(torch.arange(5.0))
    plan = module.plan(q, k)
    torch.testing.assert_close(plan.sum(-1), torch.ones(2, 3, 7).double())
    module(q, k, v).square().sum().backward()
    assert module.log_mass.grad.abs().amax(-1).min() > 0


def test_pivots_move_towards_what_the_data_wants():
    q, k, v = tokens(1, n=11, m=11)
    wanted = bistoch.sinkhorn_attention(3 * q, k, v)
    module = LowRank(rank=6, iters=5, heads=1, size=4).double()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.1)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = (module(3 * q, k, v) - wanted).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    "text",
    [
        "lowrank(size=4)",
        "lowrank(rank=8, lam=0.5, heads=3, size=4)",
        "lowrank(rank=2, learn_mass=True, heads=3, size=4)",
    ],
)
def test_a_module_prints_as_the_text_that_builds_it(text):
    heads = 3 if "heads" in text else None
    assert repr(build_operator(text, heads=heads)) == text


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({}, ValueError, r"^LowRank: size, the number of features of a query, must be given"),
        ({"size": 4, "rank": 0}, ValueError, r"^LowRank: rank must be at least 1"),
        ({"size": 4, "heads": 0}, ValueError, r"^LowRank: heads must be at least 1"),
        ({"size": 0}, ValueError, r"^LowRank: size must be at least 1"),
    ],
)
def test_sentences(options, error, sentence):
    with pytest.raises(error, match=sentence):
        LowRank(**options)


def test_pivots_made_for_another_size_are_refused_at_the_call():
    with pytest.raises(ValueError, match=r"^lowrank_attention: pivots must be .* a query, 4, "):
        LowRank(size=3)(*tokens())
