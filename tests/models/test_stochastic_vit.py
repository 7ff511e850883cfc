"""The vision Transformer of Gaussian tokens: its laws, its limits, and the distance regulariser."""

import math

import pytest
import torch
from torch.nn.functional import softplus

from bistoch import Gaussian
from bistoch.models import ClassDistance, StochasticViT, StochasticViTConfig


def make(**changes):
    sizes = {"image": (6, 10), "patch": (3, 5), "classes": 3, "dim": 8, "heads": 2, "depth": 2}
    return StochasticViT(StochasticViTConfig(**(sizes | changes))).double().eval()


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_every_parameter_of_both_streams_learns(lam, pool):
    model = make(lam=lam, pool=pool)
    model(torch.randn(2, 6, 10).double()).square().sum().backward()
    silent = [
        name
        for name, p in model.named_parameters()
        if p.grad is None or not p.grad.isfinite().all() or not p.grad.any()
    ]
    assert silent == []


def test_no_image_feels_its_neighbours_and_variances_are_positive():
    model, images = make(lam=1.0), torch.randn(5, 6, 10).double()
    together = model(images)
    alone = torch.cat([model(one[None]) for one in images])
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)
    features = model.features(images)
    assert features.mean.shape == features.variance.shape == (5, 8)
    assert (features.variance > 0).all()


def test_elasticity_reaches_the_plans():
    x = torch.randn(2, 5, 8).double()
    tokens = Gaussian(x, torch.randn(2, 5, 8).double())
    sums = {
        lam: make(lam=lam, iters=200).blocks[0].attention.plan(tokens).sum(-2) for lam in (0.0, 1.0)
    }
    torch.testing.assert_close(sums[1.0], torch.ones_like(sums[1.0]), atol=1e-6, rtol=0)
    assert (sums[0.0] - 1).abs().max() > 1e-3


def test_without_variance_scores_are_linear_and_with_more_they_are_less_certain():
    model = make()
    mean = torch.randn(4, 8).double()
    none = model.scores(Gaussian(mean, torch.zeros(4, 8).double()))
    torch.testing.assert_close(none, model.classify(mean))
    some, more = (model.scores(Gaussian(mean, torch.full((4, 8), s).double())) for s in (1, 9))
    assert (some.abs() < none.abs()).all()
    assert (more.abs() < some.abs()).all()
    # one class, against the formula
    spread = model.classify.weight.square().sum(-1)
    torch.testing.assert_close(some, none / (1 + math.pi / 8 * spread).sqrt())


def test_scores_approximate_the_mean_of_probabilities():
    # two classes: the mean over the distribution, by sampling
    model = make(classes=2)
    mean, variance = torch.randn(1, 8).double(), torch.full((1, 8), 2.0).double()
    draws = mean + variance.sqrt() * torch.randn(40_000, 8).double()
    with torch.no_grad():
        # independent scores, as the approximation has them
        model.classify.weight[1].zero_()
        model.classify.bias.zero_()
        model.classify.weight[0] *= 3
        wanted = model.classify(draws).softmax(-1).mean(0)
        found = model.scores(Gaussian(mean, variance)).softmax(-1)[0]
        certain = model.classify(mean).softmax(-1)[0]
    assert (found - wanted).abs().max() < 0.03
    assert (found - wanted).abs().max() < (certain - wanted).abs().max()


def test_the_distance_is_that_of_wasserstein():
    distance = ClassDistance(3, 8).double()
    with torch.no_grad():
        distance.mean.normal_()
        distance.variance.normal_()
    features = Gaussian(torch.randn(5, 8).double(), torch.rand(5, 8).double())
    with torch.no_grad():
        deviation = (torch.nn.functional.elu(distance.variance) + 1).sqrt()
        # of the means, and of the standard deviations
        wanted = torch.cdist(features.mean, distance.mean).square()
        wanted += torch.cdist(features.variance.sqrt(), deviation).square()
        torch.testing.assert_close(distance(features), wanted / math.sqrt(8))


def test_negatives_push_and_positives_alone_do_not():
    far, target = torch.tensor([[1.0, 2.0, 5.0]]), torch.tensor([1])
    alone, both = (ClassDistance(3, 8, negatives=negatives) for negatives in (False, True))
    assert alone.losses(far, target).item() == pytest.approx(softplus(torch.tensor(2.0)).item())
    push = (softplus(torch.tensor(-1.0)) + softplus(torch.tensor(-5.0))) / 2
    wanted = alone.losses(far, target).item() + push.item()
    assert both.losses(far, target).item() == pytest.approx(wanted)
    # all features in one place are best for positives alone
    near = torch.zeros(1, 3)
    assert alone.losses(near, target) < alone.losses(far, target)
    assert both.losses(torch.tensor([[9.0, 0.0, 9.0]]), target) < both.losses(near, target)


def test_classes_begin_apart_or_in_one_place():
    features = Gaussian(torch.zeros(1, 64), torch.ones(1, 64))
    for start, least, most in ((1.0, 2.0, 20.0), (0.0, 0.0, 1e-9)):
        torch.manual_seed(0)
        distance = ClassDistance(5, 64, start=start)
        assert least <= distance(features).min() <= distance(features).max() <= most


def test_mistakes_are_told():
    with pytest.raises(ValueError, match=r"^StochasticViT: images must be .*\(batch, 6, 10, 1\)"):
        make()(torch.zeros(2, 6, 9).double())
    with pytest.raises(ValueError, match=r"^StochasticViT: lam"):
        make(lam=1.5)
    with pytest.raises(ValueError, match=r"^StochasticViT: iters must be at least 0"):
        make(iters=-1)
    with pytest.raises(ValueError, match=r"^ClassDistance: classes must be at least 2"):
        ClassDistance(1, 8, negatives=True)
