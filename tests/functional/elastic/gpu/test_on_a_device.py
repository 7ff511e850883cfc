"""The laws of `test_kernels`, on a GPU: at most twice the error of the reference, plus rounding."""

import pytest
import torch

import bistoch
from bistoch.functional.kernels.gpu import record_launches
from kernel_cases import BIASES, OPTIONS, normal, problem
from precision import assert_as_good

HERE = "cuda" if torch.cuda.is_available() else "cpu"
NEEDED = pytest.mark.skipif(HERE == "cpu", reason="needs a CUDA or ROCm device")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# queries and keys that take each form with tokens of half precision
SIZES = {"short": (61, 53), "fused": (300, 251), "long": (509, 1021)}


def run(backend, tensors, dtype, device, **options):
    """Attention and the gradients of a fixed loss, on the CPU."""
    moved = {name: x.detach().to(device, dtype) for name, x in tensors.items()}
    leaves = {name: x.requires_grad_() for name, x in moved.items()}
    q, k, v = (leaves[name] for name in ("query", "key", "value"))
    more = {name: x for name, x in leaves.items() if name not in ("query", "key", "value")}
    for name, x in options.items():
        more[name] = x.to(device) if isinstance(x, torch.Tensor) else x
    result = bistoch.elastic_attention(q, k, v, backend=backend, **more)
    weights = torch.linspace(-1, 9, result.numel()).reshape(result.shape).cos().to(result)
    grads = torch.autograd.grad((result * weights).sum(), list(leaves.values()))
    return [x.detach().cpu() for x in (result, *grads)]


def assert_as_the_reference(tensors, dtype, device, **options):
    rounded = {name: x.to(dtype).double() for name, x in tensors.items()}
    exact = run("reference", rounded, torch.float64, "cpu", **options)
    theirs = run("reference", rounded, dtype, device, **options)
    ours = run("triton", rounded, dtype, device, **options)
    names = ("result", *(f"gradient of {name}" for name in tensors))
    terms = sum(tensors[name].shape[-2] for name in ("query", "key"))
    assert_as_good(names, [exact], [theirs], [ours], terms=terms)


def drawn(form, d=64, **more):
    n, m = SIZES[form]
    return {"query": normal(2, n, d), "key": normal(2, m, d), "value": normal(2, m, d), **more}


def test_this_test_in_the_interpreter():
    """What runs on a device has run here once."""
    tensors = {"query": normal(1, 19, 16), "key": normal(1, 23, 16), "value": normal(1, 23, 16)}
    assert_as_the_reference(tensors, torch.bfloat16, HERE, iters=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rule_tells_a_wrong_result(dtype):
    """All zero, or one part in thirty wrong, at the largest size of these tests."""
    n, m = SIZES["long"]
    exact = normal(2, n, 64)
    rounded = exact.to(dtype)
    assert_as_good(["result"], [[exact]], [[rounded]], [[rounded]], terms=n + m)
    for wrong in (torch.zeros_like(rounded), rounded * (1 + 1 / 30)):
        with pytest.raises(AssertionError, match="result"):
            assert_as_good(["result"], [[exact]], [[rounded]], [[wrong]], terms=n + m)


@pytest.mark.gpu
@NEEDED
@pytest.mark.filterwarnings("ignore::bistoch.ConvergenceWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", SIZES)
@pytest.mark.parametrize("d", [16, 64, 128, 250])
def test_every_form_and_width(form, d, dtype):
    assert_as_the_reference(drawn(form, d), dtype, HERE, iters=5)


@pytest.mark.gpu
@NEEDED
@pytest.mark.filterwarnings("ignore::bistoch.ConvergenceWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name, dtype):
    more, options = OPTIONS[name]()
    assert_as_the_reference(problem(**more), dtype, HERE, **options)


@pytest.mark.gpu
@NEEDED
@pytest.mark.parametrize("name", BIASES)
def test_every_bias(name):
    assert_as_the_reference(problem(mask=BIASES[name]()), torch.float32, HERE, iters=3)


@pytest.mark.gpu
@NEEDED
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", SIZES)
def test_a_row_that_sees_one_key_has_no_gradient_however_large_tokens_are(form, dtype):
    """Features of a pair are added up in the same order in tiles of every shape."""
    tensors = drawn(form)
    q, k, v = (x.to(HERE, dtype).requires_grad_() for x in tensors.values())
    mask = torch.arange(q.shape[1])[:, None] % k.shape[1] == torch.arange(k.shape[1])
    options = {"mask": mask.to(HERE), "iters": 2, "backend": "triton"}
    found = bistoch.elastic_attention(1000 * q, 1000 * k, v, **options)
    query_grad, key_grad = torch.autograd.grad((found * torch.randn_like(found)).sum(), (q, k))
    assert not query_grad.any()
    assert not key_grad.any()


@pytest.mark.gpu
@NEEDED
@pytest.mark.parametrize("form", SIZES)
def test_results_are_the_same_in_every_run(form):
    tokens = [x.to(HERE, torch.bfloat16) for x in drawn(form).values()]
    first, second = (bistoch.elastic_attention(*tokens, iters=5, backend="triton") for _ in "ab")
    assert torch.equal(first, second)


@pytest.mark.gpu
@NEEDED
@pytest.mark.parametrize("n", [4, 7, 32, 64, 200])
def test_plans_of_given_scores(n):
    scores = 3 * normal(1000 if n < 64 else 3, n, n)
    exact = bistoch.balance(scores, iters=8, backend="reference")
    found = bistoch.balance(scores.to(HERE, torch.float32), iters=8, backend="triton")
    assert (found.double().cpu() - exact).abs().max() < 1e-5


@pytest.mark.gpu
@NEEDED
@pytest.mark.parametrize("form", SIZES)
def test_cuda_graphs_repeat_forward_and_backward(form):
    q, k, v = (x.to(HERE, torch.bfloat16).requires_grad_() for x in drawn(form).values())

    def step():
        result = bistoch.elastic_attention(q, k, v, iters=3, backend="triton")
        return result, *torch.autograd.grad(result.float().sin().sum(), (q, k, v))

    wanted = step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.gpu
@NEEDED
# torch says so of the mode itself
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("operator", ["elastic", "causal_elastic"])
def test_nothing_waits_for_the_host(operator):
    q = torch.randn(2, 300, 64, device=HERE, dtype=torch.bfloat16, requires_grad=True)
    attend = getattr(bistoch, f"{operator}_attention")
    attend(q, q, q, backend="triton").sum().backward()
    try:
        torch.cuda.set_sync_debug_mode("error")
        attend(q, q, q, backend="triton").sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@NEEDED
@pytest.mark.parametrize("form", SIZES)
def test_compiled_programs_and_autocast(form):
    q, k, v = (x.to(HERE, torch.bfloat16).requires_grad_() for x in drawn(form).values())

    def attend(x):
        return bistoch.elastic_attention(2 * x, k, v, iters=2).sin()

    def slopes(result):
        return torch.autograd.grad(result.float().sum(), (q, k, v))

    wanted = attend(q)
    found = torch.compile(attend, fullgraph=True)(q)
    checkpointed = torch.utils.checkpoint.checkpoint(attend, q, use_reentrant=False)
    torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)
    exact = slopes(wanted)
    for one, other in zip(exact, slopes(found), strict=True):
        assert (other - one).norm() < 2e-2 * one.norm()
    for one, other in zip(exact, slopes(checkpointed), strict=True):
        assert torch.equal(other, one)
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.equal(attend(q), wanted)


@pytest.mark.gpu
@NEEDED
@pytest.mark.filterwarnings("ignore::bistoch.ConvergenceWarning")
@pytest.mark.parametrize(
    "options", [{"bin_score": 0.2}, {"row_price": 0.3, "column_price": 0.1}], ids=["bin", "prices"]
)
def test_matches_of_given_scores(options):
    scores = 2 * normal(3, 300, 200)
    exact = bistoch.match(scores, **options, backend="reference").plan
    found = bistoch.match(scores.to(HERE, torch.float32), **options, backend="triton").plan
    assert (found.double().cpu() - exact).abs().max() < 1e-5


def test_the_same_call_launches_the_same_kernels():
    """What a CUDA graph relies on: launches and sizes of memory depend on shapes alone."""

    def facts(scale):
        q = (scale * torch.randn(2, 100, 16)).requires_grad_()
        with record_launches(run=False) as launches:
            bistoch.elastic_attention(q, q, q, iters=3, backend="triton").sum().backward()
        return [
            (x.kernel.__name__, x.programs, *(
                tuple(y.shape) if torch.is_tensor(y) else y for y in x.arguments.values()
            ))
            for x in launches
        ]  # fmt: skip

    assert facts(1.0) == facts(100.0)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_a_device_that_is_not_the_current_one():
    q = torch.randn(2, 300, 64)
    here, there = (
        bistoch.elastic_attention(*[q.to(device)] * 3, iters=2, backend="triton").cpu()
        for device in ("cuda:0", "cuda:1")
    )
    assert torch.equal(here, there)
