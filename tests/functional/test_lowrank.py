"""Attention through pivots: exact rows, what the published code got wrong, padding and memory."""

import pytest
import torch

import bistoch
from bistoch.functional.lowrank import fixed_pivots
from bistoch.lab.bench.memory import allocated_by

MIB = 1 << 20
# the kernels are proven where they live, and would have to be compiled first
BACKENDS = ("reference", "streaming")
attend, plan_of = bistoch.lowrank_attention, bistoch.lowrank_plan


def tokens(n, m, d=3, e=2, batch=(2,), r=4):
    shapes = (n, d), (m, d), (m, e), (r, d)
    return [torch.randn(*batch, *s, dtype=torch.float64, requires_grad=True) for s in shapes]


def errors(plan, wanted=1.0):
    return (plan.sum(-1) - 1).abs().max().item(), (plan.sum(-2) - wanted).abs().max().item()


def glued(q, k, pivots, lam, iters, mass=None):
    """The definition with plain matrices: both sides, and the pivot marginal that was reached."""
    first = bistoch.elastic_plan(q, pivots, iters=iters, column_mass=mass)
    received = first.sum(-2)
    second = bistoch.elastic_plan(k, pivots, lam=lam, iters=iters, column_mass=received)
    return first @ (second / second.sum(-2, keepdim=True)).mT


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("iters", [0, 1, 7])
def test_the_plan_is_two_elastic_plans_glued_by_the_marginal_that_was_reached(lam, iters):
    q, k, _, pivots = tokens(9, 7)
    mass = torch.rand(4, dtype=torch.float64) + 0.1
    found = plan_of(q, k, pivots=pivots, pivot_mass=mass, lam=lam, iters=iters)
    torch.testing.assert_close(found, glued(q, k, pivots, lam, iters, mass))


@pytest.mark.parametrize("eps", [1.0, 0.2])
def test_rows_are_exact_at_any_iteration_count_and_columns_in_the_limit(eps):
    q, k, _, pivots = (t.detach() for t in tokens(11, 7, r=8))
    for iters in (0, 1, 2, 3):
        rows, columns = errors(plan_of(q, k, pivots=pivots, eps=eps, iters=iters), 11 / 7)
        assert rows < 1e-13
        assert columns > 1e-6
    rows, columns = errors(plan_of(q, k, pivots=pivots, eps=eps, iters=1000), 11 / 7)
    assert rows < 1e-13
    assert columns < 1e-6


def test_the_published_power_of_the_rank_makes_rows_of_one_over_rank_squared():
    q, k, _, pivots = (t.detach() for t in tokens(16, 16, r=8, batch=()))
    # plans of total mass one, as in transport
    first = bistoch.elastic_plan(q, pivots, iters=300) / 16
    second = bistoch.elastic_plan(k, pivots, iters=300).mT / 16
    published = 16 * (first * 8**-0.5) @ (8**-0.5 * second)
    torch.testing.assert_close(published.sum(-1), torch.full((16,), 0.015625).double())
    meant = 16 * (first * (1 / 8) ** -0.5) @ ((1 / 8) ** -0.5 * second)
    torch.testing.assert_close(meant, plan_of(q, k, pivots=pivots, iters=300))


def test_a_mass_of_the_pivots_is_in_the_marginals_and_not_only_in_the_glue():
    q, k, _, pivots = (t.detach() for t in tokens(12, 9, r=5, batch=()))
    mass = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).double()
    # used in the glue alone, between uniform marginals, it spoils rows and columns
    first, second = (bistoch.elastic_plan(x, pivots, iters=500) for x in (q, k))
    spoilt = errors(12 * (first / 12 / (mass / 15)) @ second.mT / 9, 12 / 9)
    assert min(spoilt) > 0.1
    rows, columns = errors(plan_of(q, k, pivots=pivots, pivot_mass=mass, iters=500), 12 / 9)
    assert rows < 1e-13
    assert columns < 1e-9
    # what the pivots receive is what was asked for, up to scale
    received = bistoch.elastic_plan(q, pivots, column_mass=mass, iters=500).sum(-2)
    torch.testing.assert_close(received, 12 * mass / 15)


def test_the_key_side_makes_up_for_a_query_side_that_did_not_converge():
    q, k, _, pivots = (t.detach() for t in tokens(11, 7, r=5, batch=()))
    first = bistoch.elastic_plan(4 * q, pivots, iters=1)
    second = bistoch.elastic_plan(k, pivots, iters=500, column_mass=first.sum(-2))
    blind = bistoch.elastic_plan(k, pivots, iters=500)
    seeing, not_seeing = (
        errors(first @ (side / side.sum(-2, keepdim=True)).mT, 11 / 7)[1]
        for side in (second, blind)
    )
    assert seeing < 1e-9
    assert not_seeing > 0.01


def test_the_glue_of_the_wanted_marginal_bends_rows():
    q, k, _, pivots = (t.detach() for t in tokens(11, 7, r=5, batch=()))
    first, second = (bistoch.elastic_plan(2 * x, pivots, iters=1) for x in (q, k))
    assert errors(first @ (second / (7 / 5)).mT)[0] > 0.05
    assert errors(plan_of(2 * q, 2 * k, pivots=pivots, iters=1))[0] < 1e-13


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("junk", [0.0, 1e3])
def test_padding_is_invisible_and_masked_keys_are_zero(backend, junk):
    q, k, v, pivots = tokens(7, 8)
    with torch.no_grad():
        q[:, 4:], k[:, 5:], v[:, 5:] = junk, junk, junk
    options = {"pivots": pivots, "lam": 0.7, "eps": 0.5, "backend": backend}
    masks = {"query_mask": torch.arange(7) < 4, "key_mask": torch.arange(8) < 5}
    padded = attend(q, k, v, **options, **masks)
    alone = attend(q[:, :4], k[:, :5], v[:, :5], **options)
    torch.testing.assert_close(padded[:, :4], alone)
    assert not padded[:, 4:].any()
    plan = plan_of(q, k, **options, **masks)
    assert not plan[..., 5:].any()
    slopes = [torch.autograd.grad(r.square().sum(), (q, k, v, pivots)) for r in (padded, alone)]
    torch.testing.assert_close(*slopes)
    # a batch in which one problem has no key and one no query
    nobody = torch.tensor([[True], [False]])
    for name, size in (("query_mask", 7), ("key_mask", 8)):
        result = attend(q, k, v, **options, **{name: nobody.expand(2, size)})
        assert result[0].any()
        assert not result[1].any()
        slopes = torch.autograd.grad(result.square().sum(), (q, k, v, pivots))
        assert all(slope.isfinite().all() for slope in slopes)


def test_a_number_added_to_masked_keys_would_not_mask_them():
    # what one published version does: the potential of a key absorbs whatever is added to it
    _, k, _, pivots = (t.detach() for t in tokens(7, 8, batch=()))
    hidden = torch.tensor([0.0] * 5 + [1e6] * 3).double()[:, None]
    plan = bistoch.elastic_plan(k, pivots, mask=hidden)
    torch.testing.assert_close(plan, bistoch.elastic_plan(k, pivots))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_reach_pivots_masses_and_options(backend):
    q, k, v, pivots = tokens(3, 4, d=2, r=3, batch=())
    mass = (torch.rand(3, dtype=torch.float64) + 0.5).requires_grad_()
    lam, eps = (torch.tensor(x).double().requires_grad_() for x in (0.6, 0.7))

    def call(q, k, v, pivots, mass, lam, eps):
        return attend(
            q, k, v, pivots=pivots, pivot_mass=mass, lam=lam, eps=eps, iters=2, backend=backend
        )

    assert torch.autograd.gradcheck(call, (q, k, v, pivots, mass, lam, eps))


def test_the_rank_is_at_most_the_number_of_pivots():
    q, k, _, _ = tokens(20, 20, batch=())
    for rank in (1, 3):
        assert torch.linalg.matrix_rank(plan_of(q, k, rank=rank), rtol=1e-12) == rank
    # all attention through one point is the mean
    torch.testing.assert_close(plan_of(q, k, rank=1), torch.full((20, 20), 1 / 20).double())


def test_pivots_at_the_tokens_let_sharp_attention_through():
    x = 5 * torch.eye(6).double()
    plan = plan_of(x, x, pivots=x, eps=0.2)
    torch.testing.assert_close(plan, torch.eye(6).double(), atol=1e-8, rtol=0)


def test_pivots_of_every_head_and_of_all():
    q, k, v, pivots = tokens(5, 7, batch=(3, 2))
    own = pivots[0]
    together = attend(q, k, v, pivots=own)
    for head in range(2):
        one = attend(q[:, head], k[:, head], v[:, head], pivots=own[head])
        torch.testing.assert_close(together[:, head], one)
    default = fixed_pivots(16, 3)
    torch.testing.assert_close(attend(q, k, v), attend(q, k, v, pivots=default))
    torch.testing.assert_close(attend(q, k, v, rank=5), attend(q, k, v, pivots=default[:5]))
    # no two of the fixed pivots are near each other
    assert torch.pdist(fixed_pivots(32, 64)).min() > 64**0.5


@pytest.mark.parametrize("size", [1e3, 1e6])
def test_nothing_is_nan_and_rows_are_exact_for_huge_scores(size):
    q, k, v = ((size * torch.randn(2, 9, 4)).requires_grad_() for _ in range(3))
    for lam in (0.0, 0.5, 1.0):
        plan = plan_of(q, k, lam=lam)
        torch.testing.assert_close(plan.sum(-1), torch.ones(2, 9))
        attend(q, k, v / size, lam=lam).square().sum().backward()
        assert all(tensor.grad.isfinite().all() for tensor in (q, k, v))


def train(n, rank):
    q, k, v = (torch.randn(n, 8, requires_grad=True) for _ in range(3))

    def step():
        attend(q, k, v, rank=rank, iters=3, backend="streaming").sum().backward()

    return allocated_by(step)[1]


def test_memory_is_linear_in_tokens_and_rank():
    small, large = train(2048, 8), train(8192, 8)
    assert large < 5 * small
    # one float32 matrix would be 256 MiB
    assert large < 32 * MIB
    assert train(8192, 32) < 4 * large


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"mask": torch.ones(5, 7)}, NotImplementedError, "mask must be None, since queries and"),
        ({"pivots": torch.ones(4, 2)}, ValueError, "pivots must be .* a query, 3, .*are 4 with 2"),
        ({"pivots": torch.ones(0, 3)}, ValueError, "pivots must be at least one vector"),
        ({"pivots": torch.ones(4, 3), "rank": 5}, ValueError, "rank=5 and there are 4 pivots"),
        ({"rank": 0}, ValueError, "rank must be at least 1"),
        ({"rank": 2.0}, TypeError, "rank must be a whole number"),
        (
            {"pivot_mass": torch.zeros(16)},
            ValueError,
            "pivot_mass must be positive.*leave a pivot out",
        ),
        ({"pivot_mass": torch.ones(3)}, ValueError, r"pivot_mass must broadcast to .*\(2, 16\)"),
        ({"lam": 1.5}, ValueError, r"lam must be in \[0, 1\]"),
        ({"eps": 0.0}, ValueError, "eps must be positive"),
        ({"iters": -1}, ValueError, "iters must be at least 0"),
        ({"scale": float("inf")}, ValueError, "scale must be a finite number"),
        ({"backend": "gpu"}, ValueError, "backend must be one of"),
        ({"query_mask": torch.ones(7) > 0}, ValueError, "query_mask must broadcast"),
        ({"key_mask": torch.ones(7)}, TypeError, "key_mask must be a boolean"),
    ],
)
def test_sentences(change, error, sentence):
    q, k, v, _ = tokens(5, 7)
    with pytest.raises(error, match=f"^lowrank_attention: .*{sentence}"):
        attend(q, k, v, **change)
    with pytest.raises(error, match=r"^lowrank_plan: "):
        plan_of(q, k, **change)
