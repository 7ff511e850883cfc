"""Operators that own what they learn: a sink per head, a mixing matrix."""

import pytest
import torch
from torch.nn.functional import normalize, softplus

import bistoch
from bistoch.nn import Mixing, Sink, build_operator


def tokens(*batch, n=7, m=5, d=4):
    return [torch.randn(*batch, size, d, dtype=torch.float64) for size in (n, m, m)]


def test_a_learned_sink_starts_as_softmax_plus_one_and_moves():
    q, k, v = tokens(2, 3)
    sink = Sink(learn="head", heads=3)
    torch.testing.assert_close(sink(q, k, v), bistoch.sink_attention(q, k, v))
    torch.testing.assert_close(sink.plan(q, k) @ v, sink(q, k, v))
    wanted = bistoch.sink_attention(q, k, v, logit=torch.tensor([-2.0, 0.5, 2.0]))
    optimiser = torch.optim.Adam(sink.parameters(), lr=0.2)
    for _ in range(150):
        optimiser.zero_grad()
        (sink(q, k, v) - wanted).square().mean().backward()
        optimiser.step()
    torch.testing.assert_close(
        sink.logit.detach(), torch.tensor([-2.0, 0.5, 2.0]), atol=0.1, rtol=0
    )


def test_an_attention_layer_owns_a_sink_per_head():
    layer = bistoch.nn.Attention(12, heads=3, operator="sink(learn='head', logit=-1.0)")
    assert layer.state_dict()["operator.logit"].tolist() == [-1.0] * 3
    layer(torch.randn(2, 5, 12)).square().sum().backward()
    assert layer.operator.logit.grad.abs().min() > 0


def test_mixing_starts_as_published():
    weight = Mixing(tokens=300, generator=torch.Generator().manual_seed(0)).weight.detach()
    noise = weight - torch.eye(300)
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    # the identity is in it
    assert abs(weight.diagonal().mean() - 1) < 0.2
    again = Mixing(tokens=300, generator=torch.Generator().manual_seed(0)).weight
    assert torch.equal(weight, again)


def test_mixing_is_normlin_and_learns():
    mixing = Mixing(tokens=7).double()
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(mixing(x, x, x), normalize(softplus(mixing.weight), p=1, dim=-1) @ x)
    mixing(x, x, x).square().sum().backward()
    assert mixing.weight.grad.any()
    balanced = Mixing(tokens=7, lam=1.0, iters=200)
    columns = balanced.plan(x, x).sum(-2)
    torch.testing.assert_close(columns, torch.ones_like(columns), atol=1e-4, rtol=0)


def test_mixing_per_head_and_for_other_numbers_of_keys():
    q, k, v = tokens(2, 3)
    mixing = build_operator("mixing(tokens=7, keys=5, learn='head')", heads=3)
    assert mixing.weight.shape == (3, 7, 5)
    assert mixing(q, k, v).shape == (2, 3, 7, 4)
    plan = mixing.plan(q, k)
    assert not torch.allclose(plan[:, 0], plan[:, 1])
    layer = bistoch.nn.Attention(12, heads=3, operator="mixing(tokens=5)")
    assert layer(torch.randn(2, 5, 12)).shape == (2, 5, 12)
    with pytest.raises(ValueError, match=r"weight must have one row per query .* \(6, 6\)"):
        layer(torch.randn(2, 6, 12))


@pytest.mark.parametrize(
    "text",
    [
        "sink()",
        "sink(logit=-1.0)",
        "sink(eps=0.5, learn='head', heads=4)",
        "mixing()",
        "mixing(tokens=5, lam=0.5)",
        "mixing(tokens=5, keys=3, iters=3, learn='head', heads=4)",
    ],
)
def test_a_module_prints_as_the_text_that_builds_it(text):
    assert repr(build_operator(text, heads=4)) == text


def test_state_dict_round_trip():
    for make in (lambda: Sink(learn="head", heads=3), lambda: Mixing(tokens=5)):
        one, other = make(), make()
        with torch.no_grad():
            next(one.parameters()).add_(1)
        other.load_state_dict(one.state_dict())
        assert torch.equal(next(one.parameters()), next(other.parameters()))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Sink(learn="head"), "Sink: learn='head' needs heads"),
        (lambda: Sink(learn="head", heads=0), "Sink: heads must be at least 1"),
        (lambda: Sink(learn="all"), "Sink: learn must be one of 'none', 'head'"),
        (lambda: Sink(logit=float("nan"), learn="head", heads=2), "Sink: logit must be finite"),
        (lambda: Mixing(tokens=0), "Mixing: tokens must be at least 1"),
        (lambda: Mixing(keys=3), "Mixing: keys and learn='head' describe a weight"),
        (lambda: Mixing(tokens=3, learn="head"), "Mixing: learn='head' needs heads"),
    ],
)
def test_mistakes_are_told(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_mixing_learns_how_far_it_balances():
    mixing = Mixing(tokens=5, lam=0.5, learn_lam=True, iters=200).double()
    assert repr(mixing) == "mixing(tokens=5, iters=200, learn_lam=True)"
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    fixed = Mixing(tokens=5, lam=0.5, iters=200).double()
    fixed.weight = mixing.weight
    torch.testing.assert_close(mixing(x, x, x), fixed(x, x, x))
    mixing(x, x, x).square().sum().backward()
    assert mixing.lam.shape == ()
    assert mixing.lam.grad != 0
    # a step beyond the end is used as the end
    with torch.no_grad():
        mixing.lam.fill_(1.3)
    torch.testing.assert_close(
        mixing.plan(x, x).sum(-2), torch.ones(2, 5).double(), rtol=1e-4, atol=0
    )
    each = Mixing(tokens=5, learn="head", heads=3, learn_lam=True)
    assert each.lam.tolist() == [0.0, 0.0, 0.0]
    assert each(*torch.randn(3, 2, 3, 5, 4).unbind()).shape == (2, 3, 5, 4)
    with pytest.raises(ValueError, match=r"Mixing: lam must be .*1\.5"):
        Mixing(tokens=5, lam=1.5, learn_lam=True)
