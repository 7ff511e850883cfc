"""Metrics of plans: known answers, bounds for every plan, padding that counts nowhere."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from bistoch.analysis import metrics

N = 7
IDENTITY = torch.eye(N, dtype=torch.float64)
UNIFORM = torch.full((N, N), 1 / N, dtype=torch.float64)
SHIFT = IDENTITY.roll(1, 0)
# all queries give 0.8 to key 2, and share out the rest
SINK = torch.full((N, N), 0.2 / (N - 1), dtype=torch.float64)
SINK[:, 2] = 0.8
ALL_ON_ONE = torch.zeros(N, N, dtype=torch.float64)
ALL_ON_ONE[:, 2] = 1
KNOWN = {"identity": IDENTITY, "uniform": UNIFORM, "permutation": SHIFT, "sink": SINK,
         "all on one": ALL_ON_ONE}  # fmt: skip
calm = settings(deadline=None, max_examples=60)


@st.composite
def plans(draw, square=False):
    """Plans of any sharpness, zero at padding, with the queries and keys that are real."""
    n = draw(st.integers(1, 7))
    m = n if square else draw(st.integers(1, 7))
    batch = draw(st.sampled_from([(), (2,), (3, 2)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    sharpness = draw(st.sampled_from([0.0, 1.0, 5.0, 1000.0]))
    scores = sharpness * torch.randn(*batch, n, m, generator=generator, dtype=torch.float64)
    queries = torch.rand(*batch, n, generator=generator) < draw(st.sampled_from([0.5, 1.0]))
    keys = torch.rand(*batch, m, generator=generator) < draw(st.sampled_from([0.5, 1.0]))
    keys = queries if square else keys
    allowed = queries[..., :, None] & keys[..., None, :]
    dead = ~allowed.any(-1, keepdim=True)
    scores = scores.masked_fill(~allowed & ~dead, -torch.inf)
    return scores.softmax(-1).masked_fill(~allowed, 0), queries, keys


def gini(plan):
    return metrics.load_gini(metrics.column_load(plan))


def kl(plan):
    return metrics.load_kl(metrics.column_load(plan))


def peak(plan):
    return metrics.load_peak(metrics.column_load(plan))


def strongest(plan):
    return metrics.sink_score(plan).amax(-1)


ANSWERS = {
    metrics.mean_entropy: (
        0, 1, 0, -(0.8 * math.log(0.8) + 0.2 * math.log(0.2 / 6)) / math.log(7), 0,
    ),
    gini: (0, 0, 0, 0.8 - 1 / 7, 6 / 7),
    kl: (0, 0, 0, 0.8 * math.log(5.6) + 0.2 * math.log(7 * 0.2 / 6), math.log(7)),
    peak: (1, 1, 1, 5.6, 7),
    metrics.doubly_stochastic_error: (0, 0, 0, 4.6, 6),
    strongest: (1 / 7, 1 / 7, 1 / 7, 0.8, 1),
    metrics.diagonal_score: (1, 1 / 7, 0, 1 / 7, 1 / 7),
    metrics.birkhoff_distance: (
        0, 0, 0, (7 * ((0.8 - 1 / 7) ** 2 + 6 * (0.2 / 6 - 1 / 7) ** 2)) ** 0.5, 6 ** 0.5,
    ),
    metrics.second_singular_value: (1, 0, 1, 0, 0),
    metrics.worst_contraction: (1, 0, 1, 0, 0),
    metrics.effective_rank: (7, 1, 7, 1, 1),
    metrics.stable_rank: (7, 1, 7, 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("metric", ANSWERS, ids=lambda metric: metric.__name__)
def test_known_answers(metric):
    found = metric(torch.stack(list(KNOWN.values())))
    wanted = torch.tensor(ANSWERS[metric], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def test_the_gini_index_is_its_definition():
    load = torch.rand(3, 11, dtype=torch.float64)
    pairs = (load[..., :, None] - load[..., None, :]).abs().sum((-2, -1))
    torch.testing.assert_close(metrics.load_gini(load), pairs / (2 * 11 * load.sum(-1)))


def test_a_wanted_mass_is_the_balance_to_reach():
    mass = torch.tensor([1.0, 2.0, 3.0])
    plan = (mass / 6).expand(5, 3)
    load = metrics.column_load(plan, column_mass=mass)
    torch.testing.assert_close(load, torch.ones(3))
    assert metrics.load_kl(load, column_mass=mass).item() == pytest.approx(0, abs=1e-6)
    assert metrics.load_kl(metrics.column_load(plan)).item() > 0.05


def test_causal_keys_are_judged_by_those_who_see_them():
    n = 5
    uniform = torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1)[:, None]
    score = metrics.sink_score(uniform, causal=True)
    wanted = [sum(1 / i for i in range(j, n + 1)) / (n - j + 1) for j in range(1, n + 1)]
    torch.testing.assert_close(score, torch.tensor(wanted, dtype=torch.float64))
    first = torch.zeros(n, n)
    first[:, 0] = 1
    assert metrics.sink_score(first, causal=True).tolist() == [1, 0, 0, 0, 0]


def test_sink_rate_counts_plans():
    score = torch.stack([metrics.sink_score(plan) for plan in KNOWN.values()])
    assert metrics.sink_rate(score).item() == pytest.approx(0.4)
    assert metrics.sink_rate(score, threshold=0.1).item() == 1
    assert metrics.sink_rate(score, position=2).item() == pytest.approx(0.4)
    assert metrics.sink_rate(score, position=0).item() == 0
    assert metrics.sink_rate(score, position=-1).item() == 0


def test_a_drained_sink_switches_the_head_off():
    value = torch.ones(N, 3, dtype=torch.float64)
    value[2] = 0
    ratio = metrics.switch_ratio(ALL_ON_ONE, value)
    assert ratio.abs().max() == 0
    assert metrics.off_rate(ratio) == 1
    assert metrics.value_drain(metrics.sink_score(ALL_ON_ONE), value) == 0
    # a permutation passes every value on
    equal = torch.nn.functional.normalize(torch.randn(N, 3, dtype=torch.float64), dim=-1)
    ratio = metrics.switch_ratio(SHIFT, equal)
    torch.testing.assert_close(ratio, torch.ones_like(ratio))
    assert metrics.off_rate(ratio) == 0
    drain = metrics.value_drain(metrics.sink_score(SINK), equal)
    torch.testing.assert_close(drain, torch.ones_like(drain))


def test_the_nearest_balanced_plan_is_that_of_a_solver():
    plan = (3 * torch.randn(4, 3, dtype=torch.float64)).softmax(-1)
    rows = {"type": "eq", "fun": lambda x: x.reshape(4, 3).sum(1) - 1}
    columns = {"type": "eq", "fun": lambda x: x.reshape(4, 3).sum(0)[:2] - 4 / 3}
    found = minimize(
        lambda x: ((x - plan.numpy().ravel()) ** 2).sum(), [1 / 3] * 12, bounds=[(0, 1)] * 12,
        constraints=[rows, columns], method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    distance = metrics.birkhoff_distance(plan, iters=2000)
    assert distance.item() == pytest.approx(found.fun**0.5, abs=1e-6)


@calm
@given(plans())
def test_bounds(drawn):
    plan, queries, keys = drawn
    n, m = plan.shape[-2:]
    masks = {"query_mask": queries, "key_mask": keys}
    load = metrics.column_load(plan, **masks)
    score = metrics.sink_score(plan, **masks)
    live = queries.any(-1) & keys.any(-1)
    count = keys.sum(-1).double()
    value = torch.randn(*plan.shape[:-2], m, 3, dtype=torch.float64)
    slack = 1e-9

    def inside(x, low, high):
        assert x.isfinite().all()
        assert (x >= torch.as_tensor(low, dtype=x.dtype) - slack).all()
        assert (x <= torch.as_tensor(high, dtype=x.dtype) + slack).all()

    inside(metrics.row_entropy(plan, **masks), 0, count.clamp_min(1).log()[..., None])
    inside(metrics.mean_entropy(plan, **masks), 0, 1)
    inside(load, 0, count[..., None])
    torch.testing.assert_close(load.sum(-1), torch.where(live, count, 0))
    inside(metrics.load_gini(load, key_mask=keys), 0, (1 - 1 / count.clamp_min(1)))
    inside(metrics.load_kl(load, key_mask=keys), 0, count.clamp_min(1).log())
    inside(metrics.load_peak(load, key_mask=keys), live.double(), count)
    inside(metrics.doubly_stochastic_error(plan, **masks), 0, m)
    inside(score, 0, 1)
    inside(metrics.sink_rate(score), 0, 1)
    inside(metrics.birkhoff_distance(plan, iters=20, **masks), 0, math.sqrt(2 * n))
    inside(metrics.second_singular_value(plan, **masks), 0, math.sqrt(n))
    inside(metrics.value_drain(score, value, key_mask=keys), 0, math.inf)
    inside(metrics.switch_ratio(plan, value, **masks), 0, m)
    # the tight factor is never below sigma_2
    worst = metrics.worst_contraction(plan, **masks)
    inside(worst, metrics.second_singular_value(plan, **masks), math.sqrt(n))


@calm
@given(plans(square=True))
def test_padding_counts_nowhere(drawn):
    plan, real, _ = drawn
    value = torch.randn(*plan.shape[:-1], 3, dtype=torch.float64)
    masks = {"query_mask": real, "key_mask": real}
    # whatever stands in the padding
    noisy = torch.where(real[..., :, None] & real[..., None, :], plan, torch.rand_like(plan))
    score = metrics.sink_score(noisy, **masks)
    load = metrics.column_load(noisy, **masks)
    padded = {
        "entropy": metrics.mean_entropy(noisy, **masks),
        "gini": metrics.load_gini(load, key_mask=real),
        "kl": metrics.load_kl(load, key_mask=real),
        "peak": metrics.load_peak(load, key_mask=real),
        "error": metrics.doubly_stochastic_error(noisy, **masks),
        "diagonal": metrics.diagonal_score(noisy, query_mask=real),
        "distance": metrics.birkhoff_distance(noisy, iters=20, **masks),
        "sigma": metrics.second_singular_value(noisy, **masks),
        "worst": metrics.worst_contraction(noisy, **masks),
        "drain": metrics.value_drain(score, value, key_mask=real),
    }
    flat = {name: x.reshape(-1) for name, x in padded.items()}
    n = plan.shape[-1]
    for index, (one, some, v) in enumerate(
        zip(plan.reshape(-1, n, n), real.reshape(-1, n), value.reshape(-1, n, 3), strict=True)
    ):
        one, v = one[some][:, some], v[some]
        score, load = metrics.sink_score(one), metrics.column_load(one)
        cut = {
            "entropy": metrics.mean_entropy(one),
            "gini": metrics.load_gini(load),
            "kl": metrics.load_kl(load),
            "peak": metrics.load_peak(load),
            "error": metrics.doubly_stochastic_error(one),
            "diagonal": metrics.diagonal_score(one),
            "distance": metrics.birkhoff_distance(one, iters=20),
            "sigma": metrics.second_singular_value(one),
            "worst": metrics.worst_contraction(one),
            "drain": metrics.value_drain(score, v),
        }
        for name, x in cut.items():
            torch.testing.assert_close(flat[name][index], x, msg=name)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3, 3)])
def test_empty_plans_have_numbers(shape):
    plan, value = torch.zeros(shape), torch.zeros(*shape[:-2], shape[-1], 2)
    load, score = metrics.column_load(plan), metrics.sink_score(plan)
    found = [
        metrics.row_entropy(plan), metrics.mean_entropy(plan), load, metrics.load_gini(load),
        metrics.load_kl(load), metrics.load_peak(load), metrics.doubly_stochastic_error(plan),
        score, metrics.sink_rate(score), metrics.birkhoff_distance(plan),
        metrics.second_singular_value(plan), metrics.worst_contraction(plan),
        metrics.value_drain(score, value), metrics.switch_ratio(plan, value),
    ]  # fmt: skip
    assert all(x.isfinite().all() for x in found)


def test_what_stands_in_padding_is_not_read():
    value = torch.tensor([[1.0], [2.0], [math.nan]])
    real = torch.tensor([True, True, False])
    plan = torch.tensor([[0.5, 0.5, 0.0]])
    found = metrics.switch_ratio(plan, value, key_mask=real)
    torch.testing.assert_close(found, metrics.switch_ratio(plan[:, :2], value[:2]))


def test_half_precision_is_measured_in_float32():
    plan = UNIFORM.bfloat16()
    assert metrics.row_entropy(plan).dtype == torch.float32
    assert metrics.second_singular_value(plan).dtype == torch.float32


def test_entropy_of_a_hard_plan_has_a_finite_gradient():
    plan = IDENTITY.clone().requires_grad_()
    metrics.row_entropy(plan).sum().backward()
    assert plan.grad.isfinite().all()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: metrics.row_entropy(torch.ones(3)), "row_entropy: plan must have at least 2 axes"),
        (lambda: metrics.mean_entropy(torch.ones(3)), "mean_entropy: plan must"),
        (lambda: metrics.column_load(torch.ones(3)), "column_load: plan must"),
        (lambda: metrics.sink_score(torch.ones(3)), "sink_score: plan must"),
        (lambda: metrics.second_singular_value(torch.ones(3)), "second_singular_value: plan must"),
        (lambda: metrics.sink_rate(torch.ones(3), position=3), "one of the 3 keys, but it is 3"),
        (lambda: metrics.diagonal_score(torch.ones(2, 3)), "2 queries and 3 keys"),
        (lambda: metrics.sink_score(torch.ones(2, 3), causal=True), "as many queries as keys"),
        (
            lambda: metrics.mean_entropy(torch.ones(2, 3), query_mask=torch.ones(3).bool()),
            "query_mask must broadcast",
        ),
        (
            lambda: metrics.value_drain(torch.ones(2, 3), torch.ones(3, 4)),
            "score and value must speak of the same keys",
        ),
        (lambda: metrics.birkhoff_distance(UNIFORM, iters=0), "iters must be at least 1"),
    ],
)
def test_mistakes_are_explained(call, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        call()
