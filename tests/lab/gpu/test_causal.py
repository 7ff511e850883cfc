"""The kernels of causal balance, compiled for GPUs that are not here, and the model of cost."""

import json
import os
import subprocess
import sys

import pytest
import torch

import bistoch
from bistoch.functional.causal.triton import differentiate, launch
from bistoch.functional.kernels.gpu import record_launches
from bistoch.lab.gpu import causal, cost

pytest.importorskip("triton")

PROGRAM = """
import json, torch
from bistoch.lab.gpu import causal, compiled
found = []
for target in ("sm_80", "gfx942"):
    launches = compiled.distinct(causal.steps(torch.float32, 64, target))
    some = [x for x in launches if x.kernel.__name__ in NAMES]
    found += [compiled.compile_kernel(compiled.specialise(x, target)) for x in some]
print(json.dumps([one._asdict() | {"fits": one.fits} for one in found]))
"""


def test_kernels_compile_without_spills_for_nvidia_and_amd():
    """In a process of its own, whose kernels are not those of the interpreter."""
    names = ("step_rows_kernel",)
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("NAMES", repr(names))], check=True,
        capture_output=True, text=True, env=environment, timeout=280,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert [(one["kernel"], one["target"]) for one in found] == [
        (name, target) for target in ("sm_80", "gfx942") for name in names
    ]
    for one in found:
        assert one["fits"], one
        assert one["occupancy"] > 0


def launched(n, **options):
    leaves = [torch.randn(1, n, 64, requires_grad=True) for _ in range(3)]
    with record_launches(run=False) as forward:
        result = bistoch.causal_elastic_attention(*leaves, backend="triton", **options)
    with record_launches(run=False) as backward:
        result.sum().backward()
    return len(forward), len(backward)


@pytest.mark.parametrize("n", [64, 2048, 4096, 16384])
def test_the_model_knows_all_launches(n):
    found = causal.forward(1, n, 64), causal.backward(1, n, 64)
    assert launched(n) == tuple(work.launches for work in found)


def test_the_model_counts_exponentials_and_products_of_the_interpreter(monkeypatch):
    """Each exponential and product of tiles that the kernels take, at sizes that fill all tiles."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder

    from interpreter import patch_once

    patch_once()
    counted = {"exponentials": 0, "flops": 0}
    exp, dot = InterpreterBuilder.create_exp, InterpreterBuilder.create_dot

    def count_exp(self, tile):
        counted["exponentials"] += np.asarray(tile.data).size
        return exp(self, tile)

    def count_dot(self, left, right, *rest, **more):
        (n, d), m = left.data.shape, right.data.shape[1]
        counted["flops"] += 2 * n * m * d
        return dot(self, left, right, *rest, **more)

    monkeypatch.setattr(InterpreterBuilder, "create_exp", count_exp)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", count_dot)
    # vectors over keys are as long as the sequence then
    for module in (launch, differentiate):
        monkeypatch.setattr(module, "VECTOR", 64)
    n, d = 128, 32
    leaves = [torch.randn(1, n, d, requires_grad=True) for _ in range(3)]
    result = bistoch.causal_elastic_attention(*leaves, backend="triton")
    found = dict(counted)
    result.sum().backward()
    after = {name: counted[name] - found[name] for name in counted}
    models = causal.forward(1, n, d, half=False), causal.backward(1, n, d, half=False)
    for numbers, model in zip((found, after), models, strict=True):
        assert numbers["flops"] == model.flops
        # vectors over keys, and sums that are rescaled when a peak rises, take some more
        assert model.exponentials <= numbers["exponentials"] <= 1.15 * model.exponentials


def test_the_model_counts_a_step_of_the_interpreter(monkeypatch):
    from triton.runtime.interpreter import InterpreterBuilder

    from interpreter import patch_once

    patch_once()
    flops, dot = [], InterpreterBuilder.create_dot

    def count_dot(self, left, right, *rest, **more):
        flops.append(2 * left.data.shape[0] * right.data.shape[1] * left.data.shape[1])
        return dot(self, left, right, *rest, **more)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", count_dot)
    q, k, v = torch.randn(3, 1, 128, 32).unbind()
    vector = torch.zeros(1, 127)
    state = bistoch.CausalState(vector, vector, vector + 1, vector[:, 0], torch.tensor([127]))
    with record_launches() as launches:
        bistoch.causal_elastic_step(q[:, -1:], k, v, state, backend="triton")
    model = causal.step(1, 128, 32)
    assert (len(launches), sum(flops)) == (model.launches, model.flops)


def test_expected_ratios():
    for gpu in cost.GPUS.values():
        forward, both = causal.ratio(gpu, 4096)
        # scores twice instead of once, with all keys of a block of rows
        assert 1.5 < forward < 3
        assert 1.5 < both < 5
