"""Codes of prototypes: the published steps at every number of them, where those overflow too."""

import pytest
import torch

import bistoch


def seeded(*shape, spread=3.0, dtype=torch.float64):
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def published(scores, eps, steps, mass=None):
    """Sinkhorn-Knopp as SwAV and DINOv2 have it: exponentials, prototypes first."""
    plan = torch.exp(scores / eps).mT
    plan = plan / plan.sum((-2, -1), keepdim=True)
    prototypes, samples = plan.shape[-2:]
    share = torch.full((prototypes, 1), 1 / prototypes, dtype=plan.dtype)
    if mass is not None:
        share = (mass / mass.sum()).to(plan.dtype)[:, None]
    for _ in range(steps):
        plan = plan / plan.sum(-1, keepdim=True) * share
        plan = plan / plan.sum(-2, keepdim=True) / samples
    return (plan * samples).mT


@pytest.mark.parametrize("backend", ["auto", "reference", "streaming", "cpu"])
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_every_number_of_steps_is_the_published_one(steps, backend):
    scores = seeded(2, 61, 13)
    codes = bistoch.prototype_codes(scores, eps=1.3, iters=steps, backend=backend)
    torch.testing.assert_close(codes, published(scores, 1.3, steps), rtol=1e-10, atol=1e-13)


def test_a_prior_of_the_classes_is_the_mass_of_the_columns():
    scores, mass = seeded(61, 5, spread=1.0), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).double()
    codes = bistoch.prototype_codes(scores, eps=1.0, iters=3, column_mass=mass)
    torch.testing.assert_close(codes, published(scores, 1.0, 3, mass), rtol=1e-10, atol=1e-13)
    many = bistoch.prototype_codes(scores, eps=1.0, iters=200, column_mass=mass)
    torch.testing.assert_close(many.mean(0), mass / mass.sum())


def test_codes_are_those_of_balance_from_a_start():
    scores, lam = seeded(37, 11), 0.7
    start = lam * -torch.logsumexp(scores / 2, 0)
    wanted = bistoch.balance(scores, eps=2.0, lam=lam, iters=4, start=start)
    torch.testing.assert_close(bistoch.prototype_codes(scores, eps=2.0, lam=lam, iters=5), wanted)


def test_the_ends_are_softmax():
    scores = seeded(37, 11)
    for options in ({"lam": 0.0}, {"iters": 0}):
        codes = bistoch.prototype_codes(scores, eps=0.5, **options)
        torch.testing.assert_close(codes, (scores / 0.5).softmax(-1))


@pytest.mark.parametrize(
    ("dtype", "eps", "spread"),
    [(torch.float16, 0.05, 1.0), (torch.float32, 0.04, 4.0), (torch.bfloat16, 0.04, 4.0)],
)
def test_codes_stay_finite_where_the_published_ones_do_not(dtype, eps, spread):
    scores = seeded(64, 10, spread=spread).to(dtype)
    assert not published(scores, eps, 3).isfinite().all()
    codes = bistoch.prototype_codes(scores, eps=eps)
    assert codes.dtype == dtype
    wanted = published(scores.double(), eps, 3).to(dtype)
    torch.testing.assert_close(
        codes, wanted, rtol=2e-2 if dtype != torch.float32 else 1e-3, atol=1e-4
    )


def test_taking_off_the_maximum_of_every_sample_is_another_code():
    scores = seeded(64, 10)
    wanted = published(scores, 1.0, 3)
    shifted = scores - scores.amax(-1, keepdim=True)
    assert (published(shifted, 1.0, 3) - wanted).abs().max() > 0.05
    assert (bistoch.prototype_codes(scores, eps=1.0) - wanted).abs().max() < 1e-12
    # in the limit nobody can tell
    torch.testing.assert_close(published(shifted, 1.0, 3000), published(scores, 1.0, 3000))


def test_padded_samples_are_not_there():
    scores, real = seeded(2, 23, 7), torch.ones(2, 23, dtype=torch.bool)
    real[0, 15:] = False
    scores[0, 15:] = torch.nan
    codes = bistoch.prototype_codes(scores, eps=1.0, query_mask=real)
    torch.testing.assert_close(codes[0, :15], bistoch.prototype_codes(scores[0, :15], eps=1.0))
    torch.testing.assert_close(codes[1], bistoch.prototype_codes(scores[1], eps=1.0))
    assert not codes[0, 15:].any()


def test_options_may_differ_by_problem():
    scores = seeded(2, 23, 7)
    eps, lam = torch.tensor([0.5, 2.0]).double(), torch.tensor([1.0, 0.4]).double()
    codes = bistoch.prototype_codes(scores, eps=eps, lam=lam)
    for number in (0, 1):
        one = bistoch.prototype_codes(
            scores[number], eps=eps[number].item(), lam=lam[number].item()
        )
        torch.testing.assert_close(codes[number], one)


def test_elastic_codes_follow_uneven_classes():
    # nine samples in ten belong to the first prototype
    scores = torch.zeros(100, 2).double()
    scores[:90, 0], scores[90:, 1] = 1.0, 1.0
    share = [
        bistoch.prototype_codes(scores, eps=0.2, lam=lam, iters=50)[:, 0].mean().item()
        for lam in (0.0, 0.5, 0.9, 1.0)
    ]
    assert share == sorted(share, reverse=True)
    assert share[0] > 0.85
    assert share[-1] == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("lam", [1.0, 0.6])
def test_the_gradient_is_exact(lam):
    scores = seeded(7, 5, spread=1.0).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: bistoch.prototype_codes(x, eps=0.7, lam=lam, backend="streaming"), scores
    )


def test_what_is_not_finite_shows():
    scores = seeded(7, 5)
    scores[3, 2] = torch.nan
    assert bistoch.prototype_codes(scores).isnan().any()
    # a prototype that nobody may use, and a sample without any
    scores = seeded(7, 5)
    scores[:, 1], scores[4] = -torch.inf, -torch.inf
    codes = bistoch.prototype_codes(scores, eps=1.0)
    assert codes.isfinite().all()
    assert not codes[:, 1].any()
    assert not codes[4].any()


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"eps": 0.0}, ValueError, "prototype_codes: eps must be positive"),
        ({"lam": 1.5}, ValueError, r"prototype_codes: lam must be in \[0, 1\]"),
        ({"iters": -1}, ValueError, "prototype_codes: iters must be at least 0"),
        ({"column_mass": torch.ones(4)}, ValueError, "prototype_codes: column_mass must broadcast"),
        ({"query_mask": torch.ones(3)}, TypeError, "prototype_codes: query_mask must be a boolean"),
        ({"scores": torch.ones(3, 5).long()}, TypeError, "codes: scores must be a floating"),
        ({"scores": torch.ones(5)}, ValueError, "codes: scores must have at least 2 axes"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_sentence(options, error, sentence):
    with pytest.raises(error, match=sentence):
        bistoch.prototype_codes(**{"scores": torch.randn(3, 5), **options})


@pytest.mark.parametrize("iters", [1, 2])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_broken_score_breaks_all_samples_of_its_problem(iters, number):
    scores, real = torch.randn(2, 3, 4), torch.tensor([True, True, False])
    scores[1, 0, 0] = number
    codes = bistoch.prototype_codes(scores, iters=iters, query_mask=real, backend="reference")
    assert codes[1, :2].isnan().all()
    assert codes[:, 2].eq(0).all()
    assert codes[0].isfinite().all()
