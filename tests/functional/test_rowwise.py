"""Row-wise normalisers: the facts of their papers, an outside oracle, and rows that are extreme."""

import math

import entmax as oracle
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import bistoch
from bistoch.functional import backends
from bistoch.functional.elastic.cpu import backend as cpu
from bistoch.lab.bench.memory import allocated_by

ROWWISE = [name for name, row in bistoch.OPERATORS.items() if row.family == "row-wise"]
FAMILY = {"sparsemax": oracle.sparsemax, "entmax": oracle.entmax15}


def plan(name, scores, **options):
    """The plan of a score matrix: keys are unit vectors."""
    eye = torch.eye(scores.shape[-1], dtype=scores.dtype)
    return bistoch.OPERATORS[name].plan(scores, eye, scale=1.0, **options)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_the_sparse_family_is_that_of_its_authors(name, spread):
    scores = spread * torch.randn(3, 13, 17, dtype=torch.float64)
    mine, theirs = (scores.clone().requires_grad_() for _ in range(2))
    found, wanted = plan(name, mine), FAMILY[name](theirs, dim=-1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weights = torch.randn_like(scores)
    (grad,) = torch.autograd.grad((found * weights).sum(), mine)
    (right,) = torch.autograd.grad((wanted * weights).sum(), theirs)
    torch.testing.assert_close(grad, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FAMILY)
def test_sparse_rows_sum_to_one_where_sums_are_long(name):
    found = plan(name, torch.randn(4, 4099) * 0.01)
    torch.testing.assert_close(found.sum(-1), torch.ones(4), rtol=0, atol=2e-5)
    # scores far below the others take no part, not even in the rounding
    far = torch.cat([torch.randn(4, 5), torch.full((4, 5), -1e30)], -1)
    torch.testing.assert_close(plan(name, far)[:, :5], plan(name, far[:, :5]))


@pytest.mark.parametrize("name", FAMILY)
def test_sparse_plans_are_sparse_and_ordered(name):
    found = plan(name, torch.randn(50, 40, dtype=torch.float64) * 2)
    assert (found == 0).double().mean() > 0.5
    supports = {n: (plan(n, torch.randn(50, 40) * 2) > 0).double().mean() for n in FAMILY}
    assert supports["sparsemax"] < supports["entmax"] < 1


@pytest.mark.parametrize("logit", [-3.0, 0.0, 2.5])
@pytest.mark.parametrize("backend", ["auto", "reference", "streaming", "cpu"])
def test_a_sink_is_one_more_key_without_a_value(logit, backend):
    q, k, v = torch.randn(3, 2, 3, 7, 5, dtype=torch.float64).unbind()
    # the key is zero, so a bias alone decides its score
    more_k, more_v = (torch.cat([x, torch.zeros(2, 3, 1, 5).double()], -2) for x in (k, v))
    bias = torch.zeros(7, 8, dtype=torch.float64)
    bias[:, -1] = logit
    wanted = scaled_dot_product_attention(q, more_k, more_v, attn_mask=bias)
    torch.testing.assert_close(
        bistoch.sink_attention(q, k, v, logit=logit, backend=backend), wanted
    )
    torch.testing.assert_close(bistoch.sink_plan(q, k, logit=logit, backend=backend) @ v, wanted)


def test_the_plan_of_a_sink_asks_its_backend(monkeypatch):
    def refuse(*_):
        raise bistoch.BackendUnavailableError("not here")

    bistoch.sink_plan(torch.zeros(3, 2), torch.zeros(5, 2), backend="cpu")
    monkeypatch.setitem(backends._LOADED, cpu.__name__, cpu.BACKEND._replace(solve=refuse))
    with pytest.raises(bistoch.BackendUnavailableError):
        bistoch.sink_plan(torch.zeros(3, 2), torch.zeros(5, 2), backend="cpu")


def test_a_sink_takes_what_its_logit_says():
    scores = torch.randn(5, 7, dtype=torch.float64)
    rows = plan("sink", scores, logit=1.3).sum(-1)
    left = scores.exp().sum(-1) / (scores.exp().sum(-1) + math.exp(1.3))
    torch.testing.assert_close(rows, left)
    # zero is softmax plus one; far below the scores it is softmax
    plus_one = scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))
    torch.testing.assert_close(plan("sink", scores), plus_one)
    torch.testing.assert_close(plan("sink", scores, logit=-80.0), scores.softmax(-1))


@pytest.mark.parametrize("level", [-3e4, 3e4])
@pytest.mark.parametrize("logit", [-1e4, 0.0, 1e4])
def test_the_sink_joins_the_maximum(level, logit):
    q, k, v = torch.randn(3, 1, 5, 4).unbind()
    q = (q + math.copysign(1, level)).requires_grad_()
    sink = torch.tensor([logit], requires_grad=True)
    out = bistoch.sink_attention(q, k.abs() * abs(level), v, logit=sink)
    found = bistoch.sink_plan(q, k.abs() * abs(level), logit=sink)
    torch.testing.assert_close(out, found @ v)
    out.sum().backward()
    assert found.isfinite().all()
    assert q.grad.isfinite().all()
    assert sink.grad.isfinite().all()


def test_a_sink_per_head_learns():
    q, k, v = torch.randn(3, 2, 3, 5, 4, dtype=torch.float64).unbind()
    logit = torch.randn(3, dtype=torch.float64, requires_grad=True)
    for backend in ("reference", "streaming", "cpu"):
        assert torch.autograd.gradcheck(
            lambda s, backend=backend: bistoch.sink_attention(q, k, v, logit=s, backend=backend),
            (logit,),
        )
    for head, one in enumerate(logit.tolist()):
        torch.testing.assert_close(
            bistoch.sink_attention(q, k, v, logit=logit)[:, head],
            bistoch.sink_attention(q[:, head], k[:, head], v[:, head], logit=one),
        )


def test_sink_attention_keeps_no_matrix():
    q, k, v = (torch.randn(4096, 4, requires_grad=True) for _ in range(3))
    logit = torch.zeros((), requires_grad=True)

    def step():
        bistoch.sink_attention(q, k, v, logit=logit, backend="streaming").sum().backward()

    # one float32 matrix of all scores would be 64 MiB
    assert allocated_by(step)[1] < 48 << 20


def test_sigmoid_weights_know_nothing_of_each_other():
    scores = torch.randn(3, 5, dtype=torch.float64)
    torch.testing.assert_close(plan("sigmoid", scores), (scores - math.log(5)).sigmoid())
    torch.testing.assert_close(plan("sigmoid", scores, shift=-1.5), (scores - 1.5).sigmoid())
    # small scores: rows of about one, as the shift is there for
    rows = plan("sigmoid", 0.01 * torch.randn(4, 1000, dtype=torch.float64)).sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=0, atol=0.01)


def test_sigmoid_counts_only_keys_in_sight():
    q, k, v = torch.randn(3, 9, 4).unbind()
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    whole = bistoch.sigmoid_attention(q, k, v, mask=causal)
    start = bistoch.sigmoid_attention(q[:4], k[:4], v[:4], mask=causal[:4, :4])
    torch.testing.assert_close(whole[:4], start)


def test_softpick_is_its_formula_and_leaves_rows_empty():
    scores = torch.randn(6, 5, dtype=torch.float64)
    lifted = scores.exp() - 1
    wanted = lifted.relu() / lifted.abs().sum(-1, keepdim=True)
    torch.testing.assert_close(plan("softpick", scores), wanted, rtol=1e-6, atol=1e-7)
    assert not plan("softpick", -scores.abs()).any()
    assert not plan("softpick", torch.zeros(2, 3)).any()
    # rows fall short of one by what negative scores take from the normaliser
    assert (plan("softpick", scores).sum(-1) <= 1).all()
    # unlike softmax, a shift of all scores changes the plan
    assert (plan("softpick", scores + 1) - plan("softpick", scores)).abs().max() > 0.01


def published_softpick(scores):
    """The stable form of the paper's code."""
    peak = scores.amax(-1, keepdim=True)
    lifted = (scores - peak).exp() - (-peak).exp()
    return lifted.relu() / (lifted.abs().sum(-1, keepdim=True) + 1e-8)


def test_softpick_where_the_published_form_breaks():
    scores = torch.tensor([[-100.0, -101.0]], requires_grad=True)
    (theirs,) = torch.autograd.grad(published_softpick(scores).square().sum(), scores)
    (ours,) = torch.autograd.grad(plan("softpick", scores).square().sum(), scores)
    assert theirs.isnan().any()
    assert torch.equal(ours, torch.zeros(1, 2))
    small = torch.tensor([[1e-6, 2e-6, -1e-6]])
    exact = published_softpick(small.double())
    assert (published_softpick(small) / exact - 1).abs().nan_to_num().max() > 0.01
    torch.testing.assert_close(plan("softpick", small).double(), exact, rtol=1e-5, atol=0)


def test_softpick_is_level_at_zero_as_published():
    scores = torch.randn(5, 7, dtype=torch.float64)
    scores[0], scores[1, ::2], scores[2, 3:] = 0, 0, 0
    scores[2] = -scores[2].abs()
    weights, slopes = torch.randn_like(scores), []
    for form in (published_softpick, lambda x: plan("softpick", x)):
        leaf = scores.clone().requires_grad_()
        slopes.extend(torch.autograd.grad((form(leaf) * weights).sum(), leaf))
    torch.testing.assert_close(*slopes)
    # a layer whose queries start as zeros
    q = torch.zeros(7, 5, requires_grad=True)
    k, v = torch.randn(2, 11, 5).unbind()
    bistoch.softpick_attention(q, k, v).sum().backward()
    assert not q.grad.any()


@pytest.mark.parametrize("level", [-200.0, 200.0, 1e-6, -1e-6])
def test_softpick_survives_what_overflows_the_formula(level):
    scores = (level + torch.randn(3, 5) * abs(level) / 8).requires_grad_()
    found = plan("softpick", scores)
    found.square().sum().backward()
    assert found.isfinite().all()
    assert scores.grad.isfinite().all()
    exact = plan("softpick", scores.detach().double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-6)


def test_normsoftmax_stretches_flat_rows_and_leaves_others():
    flat, steep = (torch.randn(4, 9, dtype=torch.float64) * size for size in (0.1, 10.0))
    deviation = flat.std(-1, keepdim=True, correction=0)
    stretched = (flat / deviation).softmax(-1)
    torch.testing.assert_close(plan("normsoftmax", flat), stretched, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(plan("normsoftmax", steep), steep.softmax(-1))
    # the deviation is that of the keys in sight
    sees = torch.arange(9) < 6
    torch.testing.assert_close(
        plan("normsoftmax", flat, key_mask=sees)[:, :6], plan("normsoftmax", flat[:, :6])
    )


def test_normsoftmax_of_scores_whose_squares_overflow():
    # far apart, so that the deviation is above one; and all as low
    scores = torch.tensor([[1e30, -1e30, 0.0], [-1e30, -1e30, -1e30]], requires_grad=True)
    found = plan("normsoftmax", scores)
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]]))
    found.square().sum().backward()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("name", ROWWISE)
@pytest.mark.parametrize("level", [-1e30, -1e4, 1e4, 1e30])
def test_nothing_is_nan(name, level):
    q = torch.tensor([[level], [0.0], [-level]], requires_grad=True)
    k = torch.tensor([[1.0], [0.5], [-1.0], [0.0]], requires_grad=True)
    row = bistoch.OPERATORS[name]
    found = row.attention(q, k, torch.randn(4, 2), mask=torch.arange(4) != 1)
    found.square().sum().backward()
    assert found.isfinite().all()
    assert q.grad.isfinite().all()
    assert k.grad.isfinite().all()


@pytest.mark.parametrize("name", ROWWISE)
def test_a_forbidden_key_is_one_that_is_not_there(name):
    row = bistoch.OPERATORS[name]
    q, k, v = torch.randn(3, 2, 7, 5, dtype=torch.float64).unbind()
    bias = torch.zeros(7, 7, dtype=torch.float64)
    bias[:, 4:] = -torch.inf
    torch.testing.assert_close(
        row.attention(q, k, v, mask=bias), row.attention(q, k[:, :4], v[:, :4])
    )


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("sink", {"logit": math.inf}, "logit must be finite"),
        ("sink", {"logit": torch.zeros(4)}, "logit must broadcast to the leading axes"),
        ("sink", {"backend": "gpu"}, "backend must be one of"),
        ("sigmoid", {"shift": math.nan}, "shift must be finite"),
        ("entmax", {"eps": 0.0}, "eps must be positive"),
        ("softpick", {"mask": torch.ones(4, 4)}, "mask must broadcast to the scores"),
        ("normsoftmax", {"scale": math.nan}, "scale must be a finite number"),
    ],
)
def test_mistakes_are_told(name, options, sentence):
    x, row = torch.randn(3, 5, 4), bistoch.OPERATORS[name]
    with pytest.raises(ValueError, match=f"^{name}_attention: {sentence}"):
        row.attention(x, x, x, **options)
    with pytest.raises(ValueError, match=f"^{name}_plan: {sentence}"):
        row.plan(x, x, **options)


@pytest.mark.parametrize("name", FAMILY)
def test_a_row_of_nan_stays_its_own_trouble(name):
    query = torch.tensor([[1.0, 2.0, 0.0], [torch.nan] * 3])
    plan = getattr(bistoch, f"{name}_plan")(query, torch.eye(3))
    assert plan[0].isfinite().all()
    assert plan[1].isnan().all()


def test_a_shift_may_have_leading_axes_of_the_values_alone():
    q, k, v = torch.randn(2, 1, 3, 4), torch.randn(2, 1, 5, 4), torch.randn(2, 7, 5, 2)
    shift = torch.randn(2, 7)
    found = bistoch.sigmoid_attention(q, k, v, shift=shift)
    plan = bistoch.sigmoid_plan(q.expand(2, 7, 3, 4), k, shift=shift)
    torch.testing.assert_close(found, plan @ v)
