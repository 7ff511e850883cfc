"""Kernels for the CPU read addresses: a default device of another kind must not reach them."""

import pytest
import torch

import bistoch


@pytest.mark.parametrize("name", ["elastic", "causal_elastic", "delta", "monarch", "quantum"])
def test_kernels_work_under_any_default_device(name):
    n = 8 if name == "quantum" else 200
    q, k, v = torch.randn(3, 4, n, 8, generator=torch.Generator().manual_seed(0)).unbind()
    attention = getattr(bistoch, f"{name}_attention")
    expected = attention(q, k, v, backend="cpu")
    with torch.device("meta"):
        found = attention(q, k, v, backend="cpu")
    assert torch.equal(found, expected)
