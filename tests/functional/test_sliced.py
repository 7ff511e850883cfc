"""Sliced plans: the oracle, the reference, ties, padding, memory, and what the soft sort costs."""

import numpy as np
import ot
import pytest
import torch

import bistoch
from bistoch.functional.sliced.reference import blur, couple
from bistoch.lab.bench.memory import allocated_by

MIB = 1 << 20
attend, plan_of = bistoch.sliced_attention, bistoch.sliced_plan


def tokens(n, m, d=3, e=2, batch=(2,)):
    shapes = (n, d), (m, d), (m, e)
    return [torch.randn(*batch, *s, dtype=torch.float64, requires_grad=True) for s in shapes]


@pytest.mark.parametrize("lines", ["features", "directions"])
@pytest.mark.parametrize(
    ("n", "m", "tau"), [(7, 7, 0.0), (5, 11, 0.0), (11, 5, 0.0), (6, 4, 0.0), (8, 8, 0.7)]
)
def test_the_hard_plan_is_the_expected_sliced_plan_of_pot(n, m, tau, lines):
    # POT's weights need eight tokens: their shares sum to one without rounding, and it takes
    # another way for shares that do not, on which it mixes up the costs
    q, k, _ = (t.detach().numpy() for t in tokens(n, m, batch=()))
    directions = np.eye(3) if lines == "features" else np.random.default_rng(0).normal(size=(9, 3))
    theirs, _ = ot.expected_sliced_plan(q, k, projections=directions.T, beta=tau)
    given = None if lines == "features" else torch.tensor(directions)
    ours = plan_of(torch.tensor(q), torch.tensor(k), tau=tau, directions=given)
    # their plans have total mass one
    np.testing.assert_allclose(ours, n * theirs, atol=1e-14)


@pytest.mark.parametrize(("n", "m"), [(7, 7), (5, 11), (11, 5), (6, 4)])
def test_weighted_lines_are_plans_of_pot_in_one_dimension(n, m):
    q, k, _ = (t.detach() for t in tokens(n, m, batch=()))
    plans = torch.stack([
        torch.tensor(ot.emd_1d(x.numpy(), y.numpy())) for x, y in zip(q.T, k.T, strict=True)
    ])  # fmt: skip
    costs = (plans * torch.tensor(ot.dist(q.numpy(), k.numpy()))).sum((-2, -1))
    wanted = n * ((-0.7 * costs).softmax(0)[:, None, None] * plans).sum(0)
    torch.testing.assert_close(plan_of(q, k, tau=0.7), wanted)


def test_on_one_line_it_is_the_best_assignment():
    q, k = torch.randn(2, 8, 1).unbind()
    assert torch.equal(plan_of(q, k), bistoch.hard_plan(q, k))


@pytest.mark.parametrize(("n", "m"), [(13, 13), (13, 7), (5, 17)])
def test_the_hard_plan_is_exactly_doubly_stochastic(n, m):
    q, k, _ = tokens(n, m)
    plan = plan_of(q, k)
    rounding = 8 * torch.finfo(plan.dtype).eps
    assert (plan.sum(-1) - 1).abs().max() < rounding
    assert (plan.sum(-2) - n / m).abs().max() < rounding * n / m
    # each line gives a query at most one share of every key
    assert (plan > 0).sum(-1).max() <= 3 * (m // n + 2)


@pytest.mark.parametrize("eps", [0.0, 0.4, torch.tensor([0.2, 0.7])], ids=["hard", "soft", "each"])
@pytest.mark.parametrize(("n", "m"), [(5, 5), (5, 7), (7, 3)])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
def test_values_move_as_the_plan_says_in_both_directions(eps, n, m, padded, tied):
    q, k, v = tokens(n, m)
    directions = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    if tied:
        # most tokens share their place on a line with others
        q, k, directions = (t.detach().round().requires_grad_() for t in (q, k, directions))
    leaves = [q, k, v, directions, torch.tensor([0.3, 1.2]).double().requires_grad_()]
    if isinstance(eps, torch.Tensor):
        eps = eps.double().requires_grad_()
        leaves.append(eps)
    options = {"eps": eps, "tau": leaves[4], "directions": directions}
    if padded:
        options["query_mask"] = torch.arange(n) < torch.tensor([[n], [n - 2]])
        options["key_mask"] = torch.arange(m) < torch.tensor([[m - 1], [m]])
    results = attend(q, k, v, **options), plan_of(q, k, **options) @ v
    torch.testing.assert_close(*results)
    weights = torch.randn_like(results[0])
    slopes = [
        torch.autograd.grad((result * weights).sum(), leaves, materialize_grads=True)
        for result in results
    ]
    torch.testing.assert_close(*slopes)


def test_the_gradient_of_the_soft_sort_is_exact():
    q, k, v = tokens(3, 5)
    eps, tau = (torch.tensor(x).double().requires_grad_() for x in (0.5, 0.8))
    directions = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def call(q, k, v, eps, tau, directions):
        return attend(q, k, v, eps=eps, tau=tau, directions=directions)

    assert torch.autograd.gradcheck(call, (q, k, v, eps, tau, directions))


def test_the_plan_has_second_derivatives():
    q, k, _ = tokens(3, 3, d=2, batch=())
    assert torch.autograd.gradgradcheck(lambda *t: plan_of(*t, eps=0.5).square(), (q, k))


# torch warns about its own deprecated parts when it first loads forward mode
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_mode_is_the_business_of_the_plan():
    q, k, v = (t.detach() for t in tokens(3, 3, d=2, batch=()))

    def call(attention):
        return torch.func.jvp(lambda q: attention(q), (q,), (torch.ones_like(q),))[1]

    with pytest.raises(NotImplementedError, match=r"^sliced_attention: only backward-mode.*plan"):
        call(lambda q: attend(q, k, v, eps=0.5))
    assert call(lambda q: plan_of(q, k, eps=0.5) @ v).any()


def test_tau_chooses_between_all_lines_and_the_cheapest():
    q, k, _ = tokens(6, 6, batch=())
    each = torch.stack([plan_of(q, k, directions=line[None]) for line in torch.eye(3).double()])
    torch.testing.assert_close(plan_of(q, k, tau=0.0), each.mean(0))
    distance = torch.cdist(q, k).square()
    cheapest = (each * distance).sum((-2, -1)).argmin()
    torch.testing.assert_close(plan_of(q, k, tau=1e4), each[cheapest])


def test_the_soft_sort_lies_between_the_hard_one_and_the_mean():
    q, k, _ = tokens(6, 9)
    options = {"tau": 0.0}
    torch.testing.assert_close(plan_of(q, k, eps=1e-9, **options), plan_of(q, k, **options))
    torch.testing.assert_close(plan_of(q, k, eps=1e9), torch.full_like(plan_of(q, k), 1 / 9))


# what the published soft sort makes of row and column sums, measured on 64 tokens whose places
# have standard deviation 1/8: mean errors of .057, .10, .10, .014; ours has exact rows instead
@pytest.mark.parametrize(
    ("eps", "published", "columns"),
    [(1e-3, 0.057, 0.067), (1e-2, 0.097, 0.156), (1e-1, 0.096, 0.100), (1.0, 0.014, 0.014)],
)
def test_rows_of_the_soft_sort_are_exact_where_the_published_ones_are_not(eps, published, columns):
    x, y = torch.randn(2, 200, 64, dtype=torch.float64).div(8).unbind()
    real = torch.ones(200, 64, dtype=torch.bool)
    each = torch.full((200,), eps, dtype=x.dtype)
    ends, between = [blur(x, real, each), blur(y, real, each)], couple(x, y, real, real)

    def errors(plan):
        return [(plan.sum(axis) - 1).abs().mean().item() for axis in (-1, -2)]

    # the published product is A^T B, where rank r of A looks for tokens: the transposed first blur
    assert errors(ends[0].mT @ between @ ends[1]) == pytest.approx([published] * 2, rel=0.1)
    ours = plan_of(x[..., None], y[..., None], eps=eps)
    torch.testing.assert_close(ours, ends[0] @ between @ ends[1])
    rows, error = errors(ours)
    assert rows < 1e-14
    assert error == pytest.approx(columns, rel=0.1)


def test_tokens_at_one_place_share_whatever_their_order():
    q = torch.randint(0, 3, (2, 9, 4)).double()
    k = torch.randint(0, 3, (2, 7, 4)).double()
    v = torch.randn(2, 7, 2).double()
    plan = plan_of(q, k)
    torch.testing.assert_close(attend(q, k, v), plan @ v)
    torch.testing.assert_close(plan.sum(-2), torch.full((2, 7), 9 / 7).double())
    queries, keys = torch.randperm(9), torch.randperm(7)
    torch.testing.assert_close(plan_of(q[:, queries], k[:, keys]), plan[:, queries][:, :, keys])
    # identical tokens are treated alike
    k[:, 3] = k[:, 5]
    shared = plan_of(q, k)
    torch.testing.assert_close(shared[..., 3], shared[..., 5])
    # and it is the limit of the soft sort
    torch.testing.assert_close(plan_of(q, k, eps=1e-3), shared)


@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("junk", [0.0, 1e18, float("nan")])
def test_padding_is_left_out_of_the_sort(eps, junk):
    # a mask that was the wrong way round would keep the junk and lose the tokens
    q, k, v = tokens(7, 8)
    real_queries, real_keys = torch.arange(7) < 4, torch.arange(8) < 5
    with torch.no_grad():
        q[:, 4:], k[:, 5:], v[:, 5:] = junk, junk, junk
    masks = {"query_mask": real_queries, "key_mask": real_keys}
    padded = attend(q, k, v, eps=eps, **masks)
    alone = attend(q[:, :4], k[:, :5], v[:, :5], eps=eps)
    torch.testing.assert_close(padded[:, :4], alone)
    assert not padded[:, 4:].any()
    slopes = [torch.autograd.grad(r.square().sum(), (q, k, v)) for r in (padded, alone)]
    torch.testing.assert_close(*slopes)
    assert not any(slope[:, 5:].any() for slope in slopes[0][1:])


@pytest.mark.parametrize("n", [4, 6])
def test_tokens_without_features_share_equally(n):
    q, k, v = torch.randn(n, 0), torch.randn(6, 0), torch.randn(6, 3)
    torch.testing.assert_close(plan_of(q, k), torch.full((n, 6), 1 / 6))
    torch.testing.assert_close(attend(q, k, v), v.mean(0).expand(n, 3))


def test_an_offset_of_all_tokens_does_not_cost_digits():
    # on a grid, so that a shift does not round the tokens themselves
    q, k = (torch.randn(2, 20, 8) * 64).round().div(64).unbind()
    v = torch.randn(20, 3)
    torch.testing.assert_close(attend(q + 512, k + 512, v), attend(q, k, v), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("eps", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("size", [0.0, 1e6, 1e15])
def test_nothing_is_nan(eps, size):
    q, k, v = ((size * torch.randn(2, 9, 4)).requires_grad_() for _ in range(3))
    result = attend(q, k, v, eps=eps)
    torch.testing.assert_close(plan_of(q, k, eps=eps).sum(-1), torch.ones(2, 9))
    result.sum().backward()
    assert all(tensor.isfinite().all() for tensor in (result, q.grad, k.grad, v.grad))


def test_the_soft_sort_compiles_as_one_graph():
    q, k, v = (torch.randn(2, 5, 3, requires_grad=True) for _ in range(3))
    eps = torch.tensor(0.3, requires_grad=True)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    results = compiled(q, k, v, eps=eps), attend(q, k, v, eps=eps)
    torch.testing.assert_close(*results)
    slopes = [torch.autograd.grad(result.square().sum(), (q, k, v, eps)) for result in results]
    torch.testing.assert_close(*slopes)


def train(n, lines, **options):
    q, k, v = (torch.randn(n, 8, requires_grad=True) for _ in range(3))
    directions = torch.randn(lines, 8)

    def step():
        attend(q, k, v, directions=directions, **options).sum().backward()

    return allocated_by(step)[1]


def test_memory_of_the_hard_sort_is_linear_and_hardly_feels_the_lines():
    small, large = train(4096, 4), train(16384, 4)
    # a sort has a workspace of its own, so not quite four times; a matrix would make it sixteen
    assert large < 5.5 * small
    # one float32 matrix would be 1024 MiB
    assert large < 24 * MIB
    # a line more is a place for each token, its gradient, and perhaps a copy: 3 (n + m) numbers
    assert train(4096, 36) - train(4096, 4) <= 32 * 3 * 2 * 4096 * 4


def test_memory_of_the_soft_sort_is_bounded_by_its_tiles():
    # a matrix of this size is 16 MiB, and several are needed; published code keeps all lines
    assert train(2048, 1, eps=0.1) < 24 * MIB
    assert train(256, 20, eps=0.1) < train(256, 2, eps=0.1) + MIB


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"mask": torch.ones(5, 7) > 0}, NotImplementedError, r"mask must be None, since a sort"),
        ({"eps": -0.1}, ValueError, r"eps must be zero, for a hard sort, or positive.*-0.1"),
        ({"eps": torch.zeros(())}, ValueError, r"eps must be positive.*pass the number eps=0.0"),
        ({"eps": "hard"}, TypeError, r"eps must be a number"),
        ({"tau": -1.0}, ValueError, r"tau must be zero, for equal weights, or positive"),
        ({"directions": torch.ones(4, 2)}, ValueError, r"directions .*are 4 with 2"),
        ({"directions": torch.ones(0, 3)}, ValueError, r"directions must be .*there are 0"),
        ({"directions": torch.ones(5, 4, 3)}, ValueError, r"directions must broadcast to"),
        ({"directions": [1.0]}, TypeError, r"directions must be a torch.Tensor"),
        ({"key_mask": torch.ones(5) > 0}, ValueError, r"key_mask must broadcast"),
        ({"query_mask": torch.ones(5)}, TypeError, r"query_mask must be a boolean"),
    ],
)  # fmt: skip
def test_sentences(change, error, sentence):
    q, k, v = tokens(5, 7)
    with pytest.raises(error, match=f"^sliced_attention: .*{sentence}"):
        attend(q, k, v, **change)
    with pytest.raises(error, match=r"^sliced_plan: "):
        plan_of(q, k, **change)
