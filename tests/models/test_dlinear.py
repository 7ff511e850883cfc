"""DLinear and iTransformer: known answers, and what they refuse."""

import pytest
import torch

from bistoch.models import DLinear, DLinearConfig, ITransformer, ITransformerConfig
from bistoch.models.dlinear import moving_average


def test_the_trend_is_the_mean_of_the_neighbours_with_repeated_ends():
    x = torch.tensor([4.0, 0.0, 2.0, 6.0, 1.0])
    padded = torch.cat([x[:1].expand(2), x, x[-1:].expand(2)])
    wanted = torch.stack([padded[i : i + 5].mean() for i in range(5)])
    torch.testing.assert_close(moving_average(x.expand(2, 3, 5), 5)[1, 2], wanted)


def test_a_forecast_is_linear_in_trend_and_rest():
    model = DLinear(DLinearConfig(channels=2, lookback=7, horizon=3, average=3)).double()
    with torch.no_grad():
        for layer, number in ((model.trend, 2.0), (model.rest, -1.0)):
            layer.weight.zero_()
            # the last step of the window, times a number
            layer.weight[:, -1] = number
            layer.bias.fill_(0.5)
    x = torch.randn(4, 7, 2, dtype=torch.float64)
    trend = (x[:, -2] + 2 * x[:, -1]) / 3
    wanted = 2 * trend - (x[:, -1] - trend) + 1
    torch.testing.assert_close(model(x), wanted[:, None].expand(4, 3, 2))


def test_no_channel_of_dlinear_feels_another():
    model = DLinear(DLinearConfig(channels=3, lookback=5, horizon=2, average=3))
    x = torch.randn(1, 5, 3)
    other = x.clone()
    other[..., 1:] += 1
    assert torch.equal(model(x)[..., 0], model(other)[..., 0])


def test_an_itransformer_keeps_the_level_of_its_window():
    config = ITransformerConfig(channels=3, lookback=5, horizon=2, dim=8, heads=2)
    model = ITransformer(config).double().eval()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    model.scale.eps = 0.0
    torch.testing.assert_close(model(10 * x + 7), 10 * model(x) + 7)
    # its normalization has nothing to learn
    assert not any(name.startswith("scale") for name, _ in model.named_parameters())


def test_mistakes_are_told():
    with pytest.raises(ValueError, match=r"DLinear: average must be odd.*it is 4; use .* 5"):
        DLinearConfig(channels=3, average=4)
    for model in (
        DLinear(DLinearConfig(channels=3, lookback=5, horizon=2)),
        ITransformer(ITransformerConfig(channels=3, lookback=5, horizon=2, dim=8)),
    ):
        with pytest.raises(ValueError, match=r"windows must be .*\(batch, 5, 3\), but"):
            model(torch.zeros(2, 3, 5))
