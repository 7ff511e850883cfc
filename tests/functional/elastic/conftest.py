import pytest
import torch

import bistoch
from bistoch.functional.elastic.cpu import launch as cpu
from precision import assert_as_good


def run(backend, tensors, dtype, **options):
    """Attention and the gradients of a fixed loss, computed in one precision."""
    leaves = {name: t.to(dtype).detach().requires_grad_() for name, t in tensors.items()}
    q, k, v = (leaves.pop(name) for name in ("query", "key", "value"))
    result = bistoch.elastic_attention(q, k, v, backend=backend, **leaves, **options)
    weights = torch.linspace(-1, 1, result.numel(), dtype=dtype).reshape(result.shape).cos()
    inputs = (q, k, v, *leaves.values())
    grads = torch.autograd.grad(
        (result * weights).sum(), inputs, allow_unused=True, materialize_grads=True
    )
    return (result.detach(), *grads)


@pytest.fixture
def layouts(monkeypatch):
    """The layouts that were taken, in order: of the forward, then of the backward."""
    taken, form = [], cpu.job_form

    def recorded(*arguments):
        found = form(*arguments)
        taken.append(found.layout)
        return found

    monkeypatch.setattr(cpu, "job_form", recorded)
    return taken


@pytest.fixture
def assert_as_good_as_reference():
    """Check that a backend errs at most twice as much as the reference does at the same precision.

    Errors are root mean squares over a few draws, against the reference in float64.
    """

    def check(backend, draw, *, dtype=torch.float32, draws=3, **options):
        exact, theirs, ours = [], [], []
        for _ in range(draws):
            # both see the same rounded input, so that only the arithmetic differs
            tensors = {name: t.to(dtype).double() for name, t in draw().items()}
            exact.append(run("reference", tensors, torch.float64, **options))
            theirs.append(run("reference", tensors, dtype, **options))
            ours.append(run(backend, tensors, dtype, **options))
        terms = tensors["query"].shape[-2] + tensors["key"].shape[-2]
        names = ("result", *(f"gradient of {name}" for name in tensors))
        assert_as_good(names, exact, theirs, ours, terms=terms)

    return check
