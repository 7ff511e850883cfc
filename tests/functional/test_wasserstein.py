"""Gaussian tokens: the distance, its limits, and the variance of what is added up."""

import pytest
import torch

import bistoch
from bistoch.lab.bench.memory import allocated_by
from functional.quick_backends import BACKENDS

N, M, D, E = 7, 11, 5, 3


@pytest.fixture
def tokens():
    make = {"query": (N, D), "key": (M, D), "value": (M, E)}
    return {name: torch.randn(2, *shape, dtype=torch.float64) for name, shape in make.items()}


@pytest.fixture
def variances():
    make = {"query_variance": (N, D), "key_variance": (M, D)}
    return {name: torch.rand(2, *shape, dtype=torch.float64) + 0.1 for name, shape in make.items()}


def distance(q, k, query_variance, key_variance):
    """The squared Wasserstein distance, entry by entry as it is defined."""
    means = (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
    roots = query_variance.sqrt()[..., :, None, :] - key_variance.sqrt()[..., None, :, :]
    return means + roots.square().sum(-1)


@pytest.mark.parametrize("lam", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_plan_is_the_elastic_plan_of_the_distance(tokens, variances, lam, backend):
    q, k = tokens["query"], tokens["key"]
    scores = -distance(q, k, *variances.values()) / D**0.5
    wanted = bistoch.balance(scores, lam=lam, iters=5, eps=0.7)
    found = bistoch.wasserstein_plan(q, k, **variances, lam=lam, iters=5, eps=0.7, backend=backend)
    torch.testing.assert_close(found, wanted)
    result = bistoch.wasserstein_attention(
        **tokens, **variances, lam=lam, iters=5, eps=0.7, backend=backend
    )
    torch.testing.assert_close(result, wanted @ tokens["value"])


def test_softmax_of_the_distance_is_the_published_attention(tokens, variances):
    q, k = tokens["query"], tokens["key"]
    wanted = (-distance(q, k, *variances.values()) / D**0.5).softmax(-1)
    torch.testing.assert_close(bistoch.wasserstein_plan(q, k, **variances, lam=0.0), wanted)


def test_without_variance_it_is_the_squared_distance_of_points(tokens):
    q, k = tokens["query"], tokens["key"]
    wanted = (-torch.cdist(q, k).square() / D**0.5).softmax(-1)
    torch.testing.assert_close(bistoch.wasserstein_plan(q, k, lam=0.0), wanted)
    zeros = {"query_variance": torch.zeros_like(q), "key_variance": torch.zeros_like(k)}
    torch.testing.assert_close(bistoch.wasserstein_plan(q, k, lam=0.0, **zeros), wanted)


def test_it_is_the_distance_of_distributions():
    # the closed form for normal distributions, against the sorted samples of one dimension
    generator = torch.Generator().manual_seed(0)
    mean, deviation = (0.3, -1.2), (0.5, 1.7)
    noise = torch.randn(200_000, generator=generator, dtype=torch.float64).sort().values
    samples = [m + s * noise for m, s in zip(mean, deviation, strict=True)]
    by_sorting = (samples[0] - samples[1]).square().mean()
    q, k = (torch.tensor([[m]], dtype=torch.float64) for m in mean)
    variance = [torch.tensor([[s**2]], dtype=torch.float64) for s in deviation]
    torch.testing.assert_close(distance(q, k, *variance).squeeze(), by_sorting, rtol=0.02, atol=0)


def test_equal_tokens_of_other_variance_are_told_apart():
    x = torch.zeros(3, 4)
    spread = torch.tensor([0.1, 1.0, 4.0])[:, None].expand(3, 4)
    plan = bistoch.wasserstein_plan(x, x, query_variance=spread, key_variance=spread, lam=0.0)
    assert plan.argmax(-1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("lam", [0.0, 1.0])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_moments_are_those_of_the_plan(tokens, variances, lam, backend, masked):
    options = {"lam": lam, "iters": 4, "backend": backend, "eps": torch.tensor([0.5, 2.0])}
    if masked:
        bias = torch.randn(N, M, dtype=torch.float64)
        bias[2] = -torch.inf
        bias[:, 4] = -torch.inf
        options |= {
            "mask": bias,
            "key_mask": torch.arange(M) < 9,
            "query_mask": torch.arange(N) < 6,
        }
    spread = torch.rand(2, M, E, dtype=torch.float64)
    found = bistoch.wasserstein_moments(
        *tokens.values(), spread, **variances, **options
    )  # fmt: skip
    plan = bistoch.wasserstein_plan(tokens["query"], tokens["key"], **variances, **options)
    torch.testing.assert_close(found.mean, plan @ tokens["value"])
    torch.testing.assert_close(found.variance, plan.square() @ spread)


def test_the_variance_is_that_of_a_weighted_sum_of_independent_values(tokens):
    plan = bistoch.wasserstein_plan(tokens["query"], tokens["key"])[0]
    spread = torch.rand(M, E, dtype=torch.float64)
    draws = tokens["value"][0] + spread.sqrt() * torch.randn(40_000, M, E, dtype=torch.float64)
    seen = (plan @ draws).var(0)
    found = bistoch.wasserstein_moments(
        tokens["query"][0], tokens["key"][0], tokens["value"][0], spread
    )
    torch.testing.assert_close(found.variance, seen, rtol=0.05, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_variance_of_large_scores_is_at_most_the_largest_one(backend):
    # potentials of 1e8 have no digits left behind the point in float32
    q, k = 1e4 * torch.randn(31, N, D), 1e4 * torch.randn(31, M, D)
    spread = torch.rand(31, M, E)
    found = bistoch.wasserstein_moments(q, k, spread, spread, iters=2, backend=backend)
    assert (found.variance <= spread.amax(-2, keepdim=True) * (1 + 1e-5)).all()


def test_masks_and_options_may_have_the_leading_axes_of_the_values_alone(tokens):
    q, k, v = tokens["query"][0], tokens["key"][0], tokens["value"]
    options = {"key_mask": torch.rand(2, M) < 0.7, "eps": torch.tensor([0.5, 2.0]), "iters": 3}
    result = bistoch.wasserstein_attention(q, k, v, **options)
    moments = bistoch.wasserstein_moments(q, k, v, v.square(), **options)
    wanted = bistoch.wasserstein_plan(q.expand(2, N, D), k, **options) @ v
    torch.testing.assert_close(result, wanted)
    torch.testing.assert_close(moments.mean, wanted)


@pytest.mark.parametrize("backend", ["reference", "streaming"])
def test_gradients_of_variances(tokens, variances, backend):
    inputs = (*tokens.values(), torch.rand(2, M, E).double(), *variances.values())
    small = [x[:1, :3].clone().requires_grad_() for x in inputs]

    def moments(q, k, v, s, query_variance, key_variance):
        return bistoch.wasserstein_moments(
            q, k, v, s, query_variance=query_variance, key_variance=key_variance, iters=2,
            backend=backend,
        )  # fmt: skip

    assert torch.autograd.gradcheck(moments, small)


def test_backends_agree_on_gradients(tokens, variances):
    inputs = [x.requires_grad_() for x in (*tokens.values(), *variances.values())]
    spread = torch.rand(2, M, E, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, N, E, dtype=torch.float64)

    def gradients(backend):
        found = bistoch.wasserstein_moments(
            **tokens, value_variance=spread, **variances, lam=0.6, backend=backend
        )
        loss = (found.mean * weights + found.variance * weights.abs()).sum()
        return torch.autograd.grad(loss, (*inputs, spread))

    reference = gradients("reference")
    for backend in BACKENDS:
        torch.testing.assert_close(gradients(backend), reference)


def test_a_feature_that_never_varies_has_no_gradient_and_no_nan():
    q, k, v = torch.randn(3, 5, 4).unbind()
    variance = torch.zeros(5, 4, requires_grad=True)
    found = bistoch.wasserstein_moments(
        q, k, v, variance, query_variance=variance, key_variance=variance
    )
    (found.mean.sum() + found.variance.sum()).backward()
    assert variance.grad.isfinite().all()


def test_what_all_tokens_share_costs_no_digits():
    q, k = torch.randn(2, 6, 4).unbind()
    near = bistoch.wasserstein_plan(q, k)
    # without the shift to the middle, float32 would lose all but one digit here
    far = bistoch.wasserstein_plan(q + 1000, k + 1000)
    torch.testing.assert_close(far, near, rtol=0, atol=2e-3)


def test_a_padded_key_may_hold_anything_finite():
    q, k, v = torch.randn(3, 5, 4).unbind()
    k = torch.cat([k, torch.full((2, 4), 3e38)]).requires_grad_()
    v = torch.cat([v, torch.zeros(2, 4)])
    real = torch.arange(7) < 5
    found = bistoch.wasserstein_attention(q, k, v, key_mask=real)
    torch.testing.assert_close(found, bistoch.wasserstein_attention(q, k[:5], v[:5]))
    found.sum().backward()
    assert k.grad.isfinite().all()
    assert not k.grad[5:].any()


def test_no_matrix_is_kept():
    tensors = [torch.randn(4096, 4, requires_grad=True) for _ in range(3)]
    spread = [torch.rand(4096, 4, requires_grad=True) for _ in range(3)]

    def step():
        found = bistoch.wasserstein_moments(
            *tensors, spread[0], query_variance=spread[1], key_variance=spread[2], iters=1,
            backend="streaming",
        )  # fmt: skip
        (found.mean.sum() + found.variance.sum()).backward()

    # one float32 matrix of all scores would be 64 MiB, and there are two solves
    assert allocated_by(step)[1] < 48 << 20


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"query_variance": -torch.ones(5, 4)}, ValueError, "query_variance must .* is -1; .*elu"),
        ({"key_variance": torch.ones(5, 3)}, ValueError, r"key_variance .* of key, \(5, 4\)"),
        ({"key_variance": torch.ones(5, 4).int()}, TypeError, "key_variance must be a floating"),
        ({"lam": 2.0}, ValueError, r"lam must be in \[0, 1\]"),
        ({"scale": float("nan")}, ValueError, "scale must be a finite number"),
        ({"key_mask": torch.ones(3).bool()}, ValueError, "key_mask must broadcast"),
    ],
)  # fmt: skip
def test_mistakes_are_told(options, error, sentence):
    x = torch.randn(5, 4)
    with pytest.raises(error, match=f"^wasserstein_attention: .*{sentence}"):
        bistoch.wasserstein_attention(x, x, x, **options)
    with pytest.raises(error, match=f"^wasserstein_plan: .*{sentence}"):
        bistoch.wasserstein_plan(x, x, **options)
    with pytest.raises(error, match=f"^wasserstein_moments: .*{sentence}"):
        bistoch.wasserstein_moments(x, x, x, x.abs(), **options)


def test_a_negative_variance_of_values_is_told():
    x = torch.randn(5, 4)
    with pytest.raises(ValueError, match="value_variance must be finite and not negative"):
        bistoch.wasserstein_moments(x, x, x, -x.abs())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_key_that_nobody_sees_may_be_anything(backend, number):
    q, k = torch.randn(2, 3, 5), torch.randn(2, 7, 5)
    mask = torch.arange(7) != 3
    wanted = bistoch.wasserstein_plan(q, k, mask=mask, backend=backend)
    k[:, 3] = number
    found = bistoch.wasserstein_plan(q, k, mask=mask, backend=backend)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
