"""The two ends of the forecaster: multiplied out they are what they are step by step."""

import pytest
import torch

from bistoch.models import ForecastConfig, Forecaster, folding, forecast

# prime sizes, so that no two axes can be mistaken for each other
SIZES = {"channels": 5, "lookback": 11, "horizon": 7, "extend": 3, "dim": 13, "heads": 1}


def make(**changes):
    torch.manual_seed(0)
    model = Forecaster(ForecastConfig(**{"dropout": 0.0} | SIZES | changes), "mixing(lam=0.5)")
    model.fit_axes(torch.randn(200, 5).cumsum(0), train_rows=120)
    for shift in (model.shift_in, model.shift_out):
        torch.nn.init.normal_(shift)
    return model.double()


def run(model, x):
    model.zero_grad()
    result = model(x)
    result.square().sum().backward()
    return [result.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("mlp", [1, 2])
@pytest.mark.parametrize("is_folded", [True, False])
def test_forecasts_and_all_gradients_are_those_of_the_readable_form(monkeypatch, is_folded, mlp):
    model, x = make(mlp=mlp), torch.randn(17, 11, 5, dtype=torch.float64)
    monkeypatch.setattr(forecast, "folding_pays", lambda *sizes: is_folded)
    found = run(model, x)
    monkeypatch.setattr(forecast, "embed_folded", folding.embed)
    monkeypatch.setattr(forecast, "folding_pays", lambda *sizes: False)
    for one, two in zip(found, run(model, x), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


def test_folding_is_chosen_by_the_number_of_multiplications():
    # a single window has too few rows to be worth it, an evaluation of many is
    assert not folding.folding_pays(7, 16, 96, 128, 128)
    assert folding.folding_pays(256 * 7, 16, 720, 512, 512)
