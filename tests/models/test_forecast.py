"""The forecaster: units, axes of training rows, and which mixers mix what."""

import pytest
import torch

from bistoch.models import ForecastConfig, Forecaster, operators
from bistoch.models.forecast import RevIN, StaticMixer
from bistoch.nn import Attention, Mixing

SIZES = {"channels": 5, "lookback": 7, "horizon": 3, "extend": 2, "dim": 8, "heads": 2}


def make(operator="mixing", **changes):
    config = ForecastConfig(**({"dropout": 0.0} | SIZES | changes))
    return Forecaster(config, operator).double().eval()


@pytest.mark.parametrize("operator", ["mixing", "sinkhorn"])
def test_a_forecast_has_the_units_of_its_window(operator):
    model, x = make(operator), torch.randn(2, 7, 5).double()
    # the deviation is kept from zero by 1e-5
    scale, level = 1000 * torch.rand(5).double() + 1, 50 * torch.randn(5).double()
    model.scale.eps = 0.0
    torch.testing.assert_close(model(x * scale + level), model(x) * scale + level)


def test_a_constant_window_is_finite():
    assert make()(torch.full((2, 7, 5), 3.0).double()).isfinite().all()


def test_scaling_is_undone_and_sends_no_gradient_through_the_level():
    scale, x = RevIN(5).double(), torch.randn(2, 7, 5).double()
    with torch.no_grad():
        scale.factor.uniform_(0.5, 2)
        scale.shift.normal_()
    z, level = scale(x)
    torch.testing.assert_close(scale.undo(z, level), x)
    assert not any(part.requires_grad for part in level)


def test_normlin_has_no_queries_and_a_matrix_of_its_own_in_each_block():
    model = make("mixing(lam=1.0)")
    mixers = [block.attention for block in model.blocks]
    assert all(type(mixer) is StaticMixer for mixer in mixers)
    weights = [mixer.operator.weight for mixer in mixers]
    assert [weight.shape for weight in weights] == [(5, 5), (5, 5)]
    assert weights[0] is not weights[1]
    x = torch.randn(2, 5, 8).double()
    torch.testing.assert_close(
        mixers[0].operator.plan(x, x).sum(-2), torch.ones(2, 5).double(), atol=1e-3, rtol=0
    )
    assert [type(m) for m in operators(make(Mixing(tokens=5))).values()] == [Mixing, Mixing]
    assert type(make("softmax").blocks[0].attention) is Attention


def test_dropout_on_the_plan_is_for_training_and_for_mixing():
    plain, dropping = make(), make(plan_dropout=0.5)
    dropping.load_state_dict(plain.state_dict())
    x = torch.randn(2, 7, 5).double()
    assert torch.equal(dropping(x), plain(x))
    mixer, tokens = dropping.blocks[0].attention.train(), torch.randn(3, 5, 8).double()
    torch.manual_seed(0)
    found = mixer(tokens)
    torch.manual_seed(0)
    # one draw for all windows, and what is left is scaled up
    keeps = torch.nn.functional.dropout(torch.ones(5, 5).double(), 0.5)
    plan = mixer.operator.plan(tokens[0], tokens[0]) * keeps
    torch.testing.assert_close(found, mixer.out(plan @ mixer.value(tokens)))
    with pytest.raises(ValueError, match="plan_dropout belongs to the operator mixing, but it is"):
        make("softmax", plan_dropout=0.5)


def test_only_a_mixer_carries_one_channel_to_another():
    x = torch.randn(1, 7, 5, requires_grad=True, dtype=torch.float64)

    def felt(model):
        """Whether the forecast of the first channel feels the others."""
        (slope,) = torch.autograd.grad(model(x)[..., 0].sum(), x)
        return bool(slope[..., 1:].abs().max() > 1e-6)

    assert felt(make("mixing"))
    assert felt(make("softmax"))
    assert felt(make("elastic(lam=0.5)"))
    assert not felt(make(mix=False))
    assert operators(make(mix=False)) == {}


def test_axes_come_from_training_rows_only():
    series = torch.randn(300, 5).cumsum(0)
    later = series.clone()
    later[200:] = torch.nan
    model, other = make(), make()
    model.fit_axes(series, train_rows=200)
    other.fit_axes(later, train_rows=200)
    assert model.axes_in.basis.shape == (7, 7)
    assert model.axes_out.basis.shape == (3, 3)
    for one, two in ((model.axes_in, other.axes_in), (model.axes_out, other.axes_out)):
        assert torch.equal(one.basis, two.basis)
    assert not torch.allclose(model.axes_in.basis, torch.eye(7).double(), atol=0.1)
    assert {"axes_in.basis", "axes_out.basis"} <= set(model.state_dict())


def test_it_learns_a_wave():
    time = torch.arange(400.0)
    series = torch.stack([(time / 3).sin(), (time / 3 + 1).sin(), (time / 5).cos()], -1)
    windows = series.unfold(0, 15, 1).transpose(-1, -2)
    x, y = windows[:, :12], windows[:, 12:]
    sizes = {"channels": 3, "lookback": 12, "horizon": 3, "extend": 4, "dim": 16}
    model = make(**sizes).float()
    model.fit_axes(series, train_rows=300)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        loss = (model(x[:280]) - y[:280]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # the last value again, the usual yardstick, is far worse
    error = (model(x[300:]) - y[300:]).square().mean()
    assert error < 0.1 * (x[300:, -1:] - y[300:]).square().mean()


def test_mistakes_are_told():
    with pytest.raises(ValueError, match=r"Forecaster: .*\(batch, 7, 5\), but .*\(2, 5, 7\)"):
        make()(torch.zeros(2, 5, 7).double())
    with pytest.raises(ValueError, match="Forecaster: horizon must be at least 1"):
        make(horizon=0)
