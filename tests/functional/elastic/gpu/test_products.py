"""Products of few bits: what is rounded before, and that nothing finer than tokens arrives."""

import shutil

import pytest
import torch

import bistoch
from bistoch.functional.elastic import api
from bistoch.functional.kernels.gpu import record_launches
from kernel_cases import normal


@pytest.mark.usefixtures("truncated_products")
@pytest.mark.parametrize(
    "dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
def test_as_good_as_the_reference_with_units_that_drop_bits(
    form, dtype, assert_as_good_as_reference
):
    """Values far from zero: gradients of tokens are small differences of large products."""

    def far_values():
        tensors = {"query": normal(1, 29, 16), "key": normal(1, 31, 16)}
        return {**tensors, "value": 3 + normal(1, 31, 16)}

    assert_as_good_as_reference("triton", far_values, dtype=dtype, draws=2, iters=3)


def test_results_are_means_of_values(form):
    """In float32, before they are rounded to half precision, whatever weights are rounded to."""
    query, key = (normal(2, n, 16).half() for n in (29, 31))
    with record_launches() as launches:
        bistoch.elastic_attention(query, key, torch.full_like(key, 3), iters=2, backend="triton")
    (output,) = (x.arguments["output"] for x in launches if "output" in x.arguments)
    assert output.dtype == torch.float32
    assert (output - 3).abs().max() < 4e-6


def finer_bits(launches, tokens):
    """Whether values and what arrives at results have bits that tokens have not, by name."""
    found = {}
    for launch in launches:
        for name in ("value", "output_grad"):
            tensor = launch.arguments.get(name)
            if tensor is not None:
                same = torch.equal(tensor.to(tokens.dtype).to(tensor.dtype), tensor)
                found[name] = found.get(name, False) or not same
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_with_more_bits_than_tokens_are_rounded(form, dtype, monkeypatch):
    """A compiler that joins operators may leave out the rounding to half precision in between."""
    prepared, finish = api.prepared, api._finish

    def finer(*arguments):
        clean, values, broken = prepared(*arguments)
        return clean, values * 1.0001, broken

    def finish_finer(balance, found, broken):
        return finish(balance, found._replace(output=Finer.apply(found.output)), broken)

    monkeypatch.setattr(api, "prepared", finer)
    monkeypatch.setattr(api, "_finish", finish_finer)
    query, key = (normal(1, n, 16).to(dtype).requires_grad_() for n in (29, 31))
    with record_launches() as launches:
        result = bistoch.elastic_attention(query, key, key, iters=1, backend="triton")
        result.float().cos().sum().backward()
    assert finer_bits(launches, key) == {"value": False, "output_grad": False}


class Finer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 1.0001 * grad


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with g++ on CPUs")
@pytest.mark.parametrize("operator", ["elastic", "causal_elastic"])
def test_compiled_programs_round_values_too(operator):
    attend = getattr(bistoch, f"{operator}_attention")
    options = {"iters": 1} if operator == "elastic" else {"block": 8}
    leaves = [normal(1, 29, 16).half().requires_grad_() for _ in range(3)]
    slopes = torch.linspace(0.1, 1, 16)

    def loss(q, k, v):
        result = attend(q, k, v * 1.01, backend="triton", **options)
        return (result.float() * slopes).square().sum()

    with record_launches() as launches:
        torch.autograd.grad(torch.compile(loss)(*leaves), leaves)
    assert finer_bits(launches, leaves[0]) == {"value": False, "output_grad": False}


@pytest.mark.usefixtures("truncated_products")
def test_a_bias_of_short_heads_as_good_as_the_reference(assert_as_good_as_reference):
    """Its gradient is that of the long form, for which a result has to be a mean of values."""

    def far_values():
        tensors = {"query": normal(2, 24, 16), "key": normal(2, 24, 16)}
        return {**tensors, "value": 30 + normal(2, 24, 16), "mask": normal(24, 24)}

    assert_as_good_as_reference("triton", far_values, dtype=torch.float16, draws=2, iters=2)
