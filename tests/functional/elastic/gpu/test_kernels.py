"""The Triton kernels against the reference: forward and all gradients, in the interpreter."""

import pytest
import torch

import bistoch
from bistoch.functional.kernels.gpu import record_launches
from kernel_cases import BIASES, HEADS, OPTIONS, D, M, N, normal, positive, problem


def run(backend, tensors, **options):
    """Attention and the gradients of a fixed loss, in float64."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    q, k, v = (leaves.pop(name) for name in ("query", "key", "value"))
    result = bistoch.elastic_attention(q, k, v, backend=backend, **leaves, **options)
    weights = torch.linspace(-1, 9, result.numel(), dtype=torch.float64).reshape(result.shape).cos()
    grads = torch.autograd.grad((result * weights).sum(), (q, k, v, *leaves.values()))
    return (result.detach(), *grads)


def compare(tensors, *, rtol=1e-9, **options):
    wanted, found = (run(backend, tensors, **options) for backend in ("reference", "triton"))
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, atol=1e-11, rtol=rtol)


@pytest.mark.filterwarnings("ignore::bistoch.ConvergenceWarning")
@pytest.mark.parametrize("name", OPTIONS)
def test_as_the_reference(form, name):
    more, options = OPTIONS[name]()
    compare(problem(**more), **options)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "name", ["shared", *(pytest.param(x, marks=pytest.mark.slow) for x in BIASES if x != "shared")]
)
def test_biases_have_gradients(name):
    compare(problem(mask=BIASES[name]()), iters=2)


@pytest.mark.slow
def test_steps_that_are_chosen(form):
    """With a tolerance and no omega; the same steps as the reference, and their gradient."""
    compare(problem(), iters=5, tol=1e-3)


@pytest.mark.usefixtures("small_blocks")
def test_features_in_chunks():
    tensors = {"query": normal(1, 5, 70), "key": normal(1, 18, 70), "value": normal(1, 18, 67)}
    compare(tensors, iters=1)


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("d", [1, 16, 64, 97, 128, 251, 256])
@pytest.mark.parametrize("n", [1, 2, 17, 61])
def test_any_size(n, d):
    tensors = {"query": normal(1, n, d), "key": normal(1, M, d), "value": normal(1, M, d)}
    compare(tensors, iters=2)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]
)
def test_as_good_as_the_reference(form, dtype, assert_as_good_as_reference):
    """Half precision tokens are read as they are; everything else is float32."""
    assert_as_good_as_reference("triton", problem, dtype=dtype, draws=1, iters=2)


@pytest.mark.usefixtures("ordered_products")
@pytest.mark.parametrize("size", [30.0, pytest.param(1000.0, marks=pytest.mark.slow)])
def test_extreme_scores_in_float32(form, size, assert_as_good_as_reference):
    # a single draw says little where all depends on how a few scores are rounded
    draws = 1 if size < 100 else 8
    assert_as_good_as_reference("triton", lambda: problem(size=size), draws=draws, iters=2)


@pytest.mark.usefixtures("ordered_products")
def test_gradients_of_potentials_at_large_scores_in_float32(form):
    """What iterations add to dS cancels where rows see one key, to the last bit of a score."""
    generator = torch.Generator().manual_seed(1)
    tokens = [100 * torch.randn(1, n, 32, generator=generator) for n in (37, 13)]
    waves = torch.linspace(0, 3, 37).cos(), torch.linspace(0, 7, 13).sin()

    def grads(backend, dtype):
        leaves = [x.to(dtype).requires_grad_() for x in tokens]
        found = bistoch.elastic_potentials(*leaves, iters=3, backend=backend)
        loss = sum((x * w.to(dtype)).sum() for x, w in zip(found[:2], waves, strict=True))
        return [x.double() for x in torch.autograd.grad(loss, leaves)]

    exact, found = grads("reference", torch.float64), grads("triton", torch.float32)
    for one, other in zip(exact, found, strict=True):
        assert (other - one).norm() < 1e-6 * one.norm()


@pytest.mark.usefixtures("ordered_products")
def test_a_row_that_sees_one_key_has_no_gradient_however_large_tokens_are(form):
    """Whatever is left of dP minus its mean would be multiplied with keys and queries of 1000."""
    n, d = 23, 64
    leaves = [(size * torch.randn(2, n, d)).requires_grad_() for size in (1000, 1000, 1)]
    mask = torch.eye(n, dtype=torch.bool)
    found = bistoch.elastic_attention(*leaves, mask=mask, iters=2, backend="triton")
    query_grad, key_grad, _ = torch.autograd.grad((found * torch.randn(2, n, d)).sum(), leaves)
    assert not query_grad.any()
    assert not key_grad.any()


def test_potentials_have_gradients(form):
    q, k = normal(HEADS, N, D), normal(HEADS, M, D)
    row_mass, start = positive(N), normal(M)
    row_mass[3] = 0
    results = []
    for backend in ("reference", "triton"):
        leaves = [x.clone().requires_grad_() for x in (q, k, row_mass, start)]
        found = bistoch.elastic_potentials(
            *leaves[:2], row_mass=leaves[2], start=leaves[3], iters=2, lam=0.7, backend=backend
        )
        loss = found.row.masked_fill(found.row.isinf(), 0).sin().sum() + found.column.cos().sum()
        grads = torch.autograd.grad(loss, leaves)
        results.append([found.row, found.column, found.error, *grads])
        assert found.iterations.tolist() == [2] * HEADS
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-9)


def test_nothing_of_n_x_m_is_in_memory():
    n, m = 256, 320
    q = torch.randn(1, n, 4, requires_grad=True)
    k, v = torch.randn(1, m, 4), torch.randn(1, m, 3)
    with record_launches(run=False) as launches:
        bistoch.elastic_attention(q, k, v, iters=3, backend="triton").sum().backward()
    sizes = [x.numel() for _, _, given in launches for x in given.values() if torch.is_tensor(x)]
    # what is kept of three iterations
    assert max(sizes) <= 2 * (3 + 1) * max(n, m)


def test_launches():
    """Long: two an iteration, three with a tolerance; fused: one; short: one each way."""

    def count(n, **options):
        q = torch.randn(2, n, 4, requires_grad=True)
        with record_launches(run=False) as forward:
            result = bistoch.elastic_attention(q, q, q, iters=5, backend="triton", **options)
        with record_launches(run=False) as backward:
            result.sum().backward()
        return len(forward), len(backward)

    assert count(300) == (2 * 5 + 2, 2 * 5 + 6)
    assert count(300, tol=0.1) == (3 * 5 + 3, 2 * 5 + 6)
    assert count(100) == (5 + 3, 5 + 7)
    assert count(100, tol=0.1) == (3 * 5 + 3, 5 + 7)
    assert count(32) == (1, 1)


@pytest.mark.filterwarnings("ignore::bistoch.ConvergenceWarning")
@pytest.mark.parametrize(("shape", "options"), [
    ((7, 4, 4), {}),
    ((3, 5, 7), {"row_mass": torch.tensor([1.0, 2, 0.5, 0, 1]).double(), "start": torch.ones(7)}),
    ((2, 3, 9, 6), {"tol": 1e-3, "iters": 9}),
    ((3, 5, 7), {"lam": 0.4, "omega": 1.3, "key_mask": torch.arange(7) < 5,
                 "query_mask": torch.arange(5) < 4}),
    ((2, 33, 31), {"iters": 2}),
], ids=["small", "masses", "tolerance", "padding", "larger"])  # fmt: skip
def test_plans_of_given_scores(shape, options):
    results = []
    for backend in ("reference", "triton"):
        scores = 3 * torch.linspace(-9, 9, torch.Size(shape).numel(), dtype=torch.float64).sin()
        scores = scores.reshape(shape).requires_grad_()
        with record_launches() as launches:
            plan = bistoch.balance(scores, backend=backend, **{"iters": 4, **options})
        weights = torch.arange(plan.numel()).reshape(shape).cos()
        results.append((plan.detach(), *torch.autograd.grad((plan * weights).sum(), scores)))
        assert len(launches) == (1 if backend == "triton" else 0)
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-9)


@pytest.mark.usefixtures("small_blocks")
def test_given_scores_of_any_size():
    scores = normal(2, N, M).requires_grad_()
    results = []
    for backend in ("reference", "triton"):
        plan = bistoch.balance(scores, iters=2, backend=backend)
        results.append((plan.detach(), *torch.autograd.grad(plan.sin().sum(), scores)))
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-9)


LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "heads inside": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda x: x[:1].expand_as(x),
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
}
every_layout = pytest.mark.parametrize("layout", list(LAYOUTS))


def assert_layout_is_invisible(call, layout, *tensors):
    """Results and gradients are those of dense inputs, also if what arrives is not dense."""
    results = []
    for kept in (False, True):
        laid = [LAYOUTS[layout](x.detach()) for x in tensors]
        leaves = [(x if kept else x.contiguous()).requires_grad_() for x in laid]
        found = call(*leaves)
        weights = torch.linspace(-1, 9, found.numel(), dtype=found.dtype).reshape(found.shape).cos()
        arriving = LAYOUTS[layout](weights) if kept else LAYOUTS[layout](weights).contiguous()
        results.append((found.detach(), *torch.autograd.grad(found, leaves, arriving)))
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-13, rtol=1e-11)


@pytest.mark.parametrize(
    "layout",
    [
        "transposed",
        *(pytest.param(x, marks=pytest.mark.slow) for x in LAYOUTS if x != "transposed"),
    ],
)
def test_tokens_and_biases_of_any_layout(form, layout):
    def attend(*leaves):
        *tokens, bias = leaves
        return bistoch.elastic_attention(*tokens, mask=bias, iters=1, backend="triton")

    tensors = problem(mask=BIASES["own"]())
    assert_layout_is_invisible(attend, layout, *tensors.values())


@every_layout
@pytest.mark.parametrize("whole", [True, False], ids=["plans", "tiles"])
def test_scores_of_any_layout(whole, layout, request):
    """Small ones, whose plan is one launch, and those of several tiles."""
    if not whole:
        request.getfixturevalue("small_blocks")

    def plan(scores):
        return bistoch.balance(scores, iters=1, backend="triton")

    shape = (3, 5, 7) if whole else (HEADS, N, M)
    assert_layout_is_invisible(plan, layout, normal(*shape))


@pytest.mark.parametrize("lengths", [(0, 3), (3, 0)])
def test_nothing_to_see(lengths):
    n, m = lengths
    q, k, v = torch.randn(2, n, 4, requires_grad=True), torch.randn(2, m, 4), torch.randn(2, m, 3)
    result = bistoch.elastic_attention(q, k, v, backend="triton")
    result.sum().backward()
    assert result.shape == (2, n, 3)
    assert not result.any()


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_columns_whose_sums_underflow(dtype, assert_as_good_as_reference):
    """Key 3 is far from all queries: in plain numbers its column of the first plan is zero."""

    def problem_with_a_far_key():
        tensors = problem()
        tensors["query"][..., 0], tensors["key"][..., 0] = 40.0, 0.0
        tensors["key"][:, 3, 0] = -60.0
        return tensors

    if dtype == torch.float64:
        compare(problem_with_a_far_key(), iters=2)
    else:
        assert_as_good_as_reference("triton", problem_with_a_far_key, dtype=dtype, iters=2)


@pytest.mark.usefixtures("fused")
def test_shares_of_the_queries_do_not_matter(monkeypatch):
    """As many programs as one likes, some without a query, find the same up to rounding."""
    from bistoch.functional.elastic.triton import blocks

    tensors, results = problem(), []
    for busy in (1, 1000):
        monkeypatch.setattr(blocks, "BUSY", busy)
        results.append(run("triton", tensors, iters=2))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-13, rtol=1e-11)


def test_blocks_can_be_chosen(monkeypatch):
    """By the environment, and by a program; the result is the same up to rounding."""
    from bistoch.functional.elastic.triton import blocks
    from bistoch.functional.kernels.tuning import VARIABLE, use_blocks

    monkeypatch.setattr(blocks, "LARGEST_SINGLE_HEAD", 0)
    monkeypatch.setattr(blocks, "STRIP_TOKENS", {True: 0, False: 0})
    q = torch.randn(1, 40, 4)

    def attend():
        with record_launches() as launches:
            found = bistoch.elastic_attention(q, q, q, iters=1, backend="triton")
        return found, [x.arguments.get("BLOCK_X") for x in launches]

    wanted, usual = attend()
    monkeypatch.setenv(VARIABLE, "steps=16x32x2x1, output=32x16x4x1")
    found, sizes = attend()
    assert (usual, sizes) == ([64, 64, 64, None], [16, 16, 32, None])
    torch.testing.assert_close(found, wanted)
    with use_blocks({"steps": (32, 16, 4, 1)}):
        assert attend()[1] == [32, 32, 32, None]


@pytest.mark.parametrize(
    ("text", "said"),
    [("stairs=16x16x4x1", "a part is 'stairs=16x16x4x1'"), ("steps=16x16x4", "a part is 'steps=16"),
     ("steps=48x16x4x1", "steps has 48x16x4x1"), ("bias=16x16x4x9", "bias has 16x16x4x9")],
)  # fmt: skip
def test_blocks_that_cannot_be_are_refused(text, said, monkeypatch):
    monkeypatch.setenv("BISTOCH_TRITON_BLOCKS", text)
    q = torch.randn(1, 200, 4)
    with pytest.raises(ValueError, match=f"BISTOCH_TRITON_BLOCKS.*{said}"):
        bistoch.elastic_attention(q, q, q, iters=1, backend="triton")
