"""What is computed on the CPU stays there, whatever the default device is.

Kernels for the CPU read addresses: a tensor of another kind of device must not reach them.
"""

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


@pytest.mark.parametrize("part", ["attention", "plan"])
@pytest.mark.parametrize(
    ("name", "backend"),
    [("causal_elastic", "streaming"), ("lowrank", "auto"), ("monarch", "cpu"), ("quantum", "cpu"),
     ("quantum", "reference")],
)  # fmt: skip
def test_tensors_made_on_the_way_are_on_the_device_of_the_tokens(name, backend, part):
    tokens = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0)).unbind()
    attend = getattr(bistoch.OPERATORS[name], part)
    given = tokens if part == "attention" else tokens[:2]
    expected = attend(*given, backend=backend)
    with torch.device("meta"):
        found = attend(*given, backend=backend)
    assert torch.equal(found, expected)
