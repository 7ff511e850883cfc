"""Many small matrices at once: the lane kernels agree with the reference, matrix by matrix."""

import pytest
import torch

import bistoch
from bistoch.functional.elastic.cpu import lanes
from bistoch.functional.elastic.cpu import launch as cpu

# more matrices than lanes, and not a multiple of them
SHAPES = [(37, 4, 4), (35, 3, 5), (3, 11, 7), (2, 61, 64), (1, 1, 1), (33, 1, 6), (33, 6, 1)]


def run(backend, scores, dtype, lam=1.0, omega=1.0, **options):
    """Plans and the gradients of a fixed loss."""
    batch = scores.shape[:-2]
    leaves = [scores.to(dtype).detach().requires_grad_()]
    leaves += [torch.full(batch, x, dtype=dtype, requires_grad=True) for x in (lam, omega)]
    leaves += [torch.linspace(1, 2, scores.shape[-1], dtype=dtype, requires_grad=True)]
    scores, lam, omega, mass = leaves
    plan = bistoch.balance(
        scores, lam=lam, omega=omega, column_mass=mass, backend=backend, **options
    )
    weights = torch.linspace(-1, 9, plan.numel(), dtype=dtype).reshape(plan.shape).cos()
    loss = (plan * weights).sum()
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return (plan.detach(), *grads)


def rms(tensor):
    return tensor.square().mean().sqrt()


@pytest.fixture(autouse=True)
def _only_lanes(monkeypatch):
    """Whatever happens in this file happens in the lanes."""
    used = []
    run = lanes.balance_lanes
    monkeypatch.setattr(lanes, "balance_lanes", lambda *given: used.append(1) or run(*given))
    yield
    assert used


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [{"iters": 0}, {"iters": 1}, {"iters": 7, "lam": 0.6, "omega": 1.3}, {"iters": 40}],
    ids=str,
)
def test_equal_to_the_reference(shape, options):
    scores = 2 * torch.randn(shape, dtype=torch.float64)
    wanted = run("reference", scores, torch.float64, **options)
    for ours, theirs in zip(run("cpu", scores, torch.float64, **options), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("scale", [1, 5, 40, 1e4])
@pytest.mark.parametrize("lam", [0.5, 1.0])
def test_as_good_as_the_reference_in_float32(scale, lam):
    for shape in [(40, 4, 4), (40, 9, 5)]:
        scores = (scale * torch.randn(shape)).double()
        options = {"lam": lam, "iters": 20}
        exact = run("reference", scores, torch.float64, **options)
        errors = []
        for backend in ("cpu", "reference"):
            found = run(backend, scores, torch.float32, **options)
            assert all(tensor.isfinite().all() for tensor in found)
            errors.append([rms(a - b) for a, b in zip(found, exact, strict=True)])
        ours, theirs = errors
        rounding = torch.finfo(torch.float32).eps * sum(shape[1:])
        for our, their, truth in zip(ours, theirs, exact, strict=True):
            size = rms(truth).clamp_min(1)
            assert our <= 2 * their + rounding * size


def test_masks_padding_and_rows_that_see_nothing():
    scores = torch.randn(35, 5, 7, dtype=torch.float64)
    mask = torch.rand(35, 5, 7) > 0.3
    mask[3, 1] = False
    mask[4, :, 2] = False
    options = {
        "mask": mask,
        "query_mask": torch.arange(5) < torch.randint(1, 6, (35, 1)),
        "key_mask": torch.arange(7) < torch.randint(1, 8, (35, 1)),
        "lam": 0.8,
        "iters": 9,
    }
    wanted = run("reference", scores, torch.float64, **options)
    found = run("cpu", scores, torch.float64, **options)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-9)
    assert not found[0][3, 1].any()
    assert not found[0][4, :, 2].any()


def test_any_layout_is_accepted():
    scores = torch.randn(40, 5, 4, dtype=torch.float64)
    for strided in (scores.mT, scores.transpose(0, 1), scores[::2], scores[:1].expand(33, 5, 4)):
        wanted = run("reference", strided, torch.float64, iters=6)
        for ours, theirs in zip(run("cpu", strided, torch.float64, iters=6), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-9)


def test_each_matrix_stops_on_its_own():
    scores = torch.randn(50, 4, 4, dtype=torch.float64) * torch.linspace(0.1, 3, 50)[:, None, None]
    options = {"iters": 300, "tol": 1e-2, "lam": 0.95}
    wanted = run("reference", scores, torch.float64, **options)
    for ours, theirs in zip(run("cpu", scores, torch.float64, **options), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-8)
    with pytest.warns(bistoch.ConvergenceWarning, match="above tol=1e-09"):
        bistoch.balance(8 * scores, iters=2, tol=1e-9, backend="cpu")


def test_one_extreme_matrix_does_not_touch_its_neighbours():
    scores = torch.randn(40, 4, 4)
    alone = bistoch.balance(scores, iters=20, backend="cpu")
    scores[7] *= 1e4
    together = bistoch.balance(scores, iters=20, backend="cpu")
    others = torch.arange(40) != 7
    assert torch.equal(together[others], alone[others])
    exact = bistoch.balance(scores[7].double(), iters=20, backend="reference")
    # scores of this size are rounded to about 1e-3
    torch.testing.assert_close(together[7].double(), exact, atol=1e-3, rtol=0)
    torch.testing.assert_close(together.sum(-1), torch.ones(40, 4))


def test_gradcheck_and_compile():
    scores = torch.randn(3, 3, 5, dtype=torch.float64, requires_grad=True)
    lam = torch.rand(3, dtype=torch.float64, requires_grad=True)

    def plan(scores, lam):
        return bistoch.balance(scores, lam=lam, iters=4, backend="cpu")

    assert torch.autograd.gradcheck(plan, (scores, lam))
    compiled = torch.compile(plan, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(scores, lam), plan(scores, lam))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_forward_mode_is_refused():
    scores = torch.randn(2, 3, 3)
    bistoch.balance(scores, backend="cpu")
    with pytest.raises(NotImplementedError, match='backend="reference"'):
        torch.func.jvp(lambda s: bistoch.balance(s, backend="cpu"), (scores,), (scores,))


def test_empty_batches_and_half_precision():
    assert bistoch.balance(torch.randn(0, 4, 4), backend="cpu").shape == (0, 4, 4)
    assert bistoch.balance(torch.randn(3, 0, 4), backend="cpu").shape == (3, 0, 4)
    scores = torch.randn(5, 4, 4, dtype=torch.bfloat16)
    plan = bistoch.balance(scores, backend="cpu")
    assert plan.dtype == torch.bfloat16
    torch.testing.assert_close(plan, bistoch.balance(scores, backend="reference"))


def test_larger_matrices_go_another_way(monkeypatch):
    monkeypatch.setattr(lanes, "LARGEST", 15)
    scores = torch.randn(40, 4, 4, dtype=torch.float64)
    other = bistoch.balance(scores, backend="cpu")
    monkeypatch.setattr(lanes, "LARGEST", 16)
    torch.testing.assert_close(bistoch.balance(scores, backend="cpu"), other)


def test_more_iterations_than_the_workspace_holds_go_another_way(monkeypatch):
    scores = torch.randn(40, 4, 4, dtype=torch.float64)
    wanted = bistoch.balance(scores, iters=30, backend="cpu")
    monkeypatch.setattr(cpu, "WORKSPACE_BYTES", 1 << 16)
    monkeypatch.setattr(
        lanes, "balance_lanes", lambda *_: pytest.fail("the workspace is too small")
    )
    torch.testing.assert_close(bistoch.balance(scores, iters=30, backend="cpu"), wanted)


@pytest.mark.filterwarnings("ignore::bistoch.ConvergenceWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_start_of_a_key_that_nobody_sees_chooses_no_step(dtype):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(19, 17, 3, generator=generator, dtype=dtype)
    start = torch.randn(19, 3, generator=generator, dtype=dtype)
    hidden = torch.arange(19) % 4
    key_mask = torch.arange(3) != hidden[:, None]
    plans = [
        bistoch.balance(scores, start=start, key_mask=key_mask, iters=2, tol=1e-9, backend=backend)
        for backend in ("cpu", "reference")
    ]
    torch.testing.assert_close(*plans, atol=1e-5 if dtype == torch.float32 else 1e-12, rtol=0)
