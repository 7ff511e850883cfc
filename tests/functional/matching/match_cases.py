"""Both forms of slack with every backend, and how their results are compared."""

import pytest
import torch

from bistoch.functional.matching import slack as _slack
from functional.quick_backends import BACKENDS

N, M = 7, 11
# test_match_kernels has those for GPUs, which the interpreter runs slowly
SLACK_BACKENDS = tuple(name for name in _slack.BACKENDS if name != "triton")
FORMS = {
    **{f"bins-{backend}": (backend, {"bin_score": 0.6}) for backend in BACKENDS},
    **{
        f"prices-{backend}": (backend, {"row_price": 0.4, "column_price": -0.3})
        for backend in SLACK_BACKENDS
    },
}
every_form = pytest.mark.parametrize(("backend", "slack"), FORMS.values(), ids=FORMS.keys())
every_end = pytest.mark.parametrize("end", ["rows", "columns"])


def normal(*shape, seed=0, scale=1.0):
    made = torch.Generator().manual_seed(seed + sum(shape))
    return scale * torch.randn(shape, generator=made, dtype=torch.float64)


def logs(found):
    return found.log_plan, found.log_rows, found.log_columns


def with_grads(function, *leaves):
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    results = function(*leaves)
    loss = sum((x * torch.linspace(1, 9, x.numel()).cos().reshape(x.shape)).sum() for x in results)
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [x.detach() for x in results] + list(grads)


def assert_same(ours, theirs, **tolerance):
    tolerance = tolerance or {"atol": 1e-10, "rtol": 1e-9}
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, **tolerance)
