"""Kernels compiled for GPUs that are not here, and the model of their cost."""

import json
import os
import subprocess
import sys

import pytest
import torch

import bistoch
from bistoch.functional.kernels.gpu import record_launches
from bistoch.lab.gpu import cost

pytest.importorskip("triton")

PROGRAM = """
import json, torch
from bistoch.lab.gpu import compiled, table
launches = compiled.distinct(table.long_launches(torch.bfloat16, 64))
some = [x for x in launches if x.kernel.__name__ in NAMES]
found = [compiled.compile_launch(x, target) for x in some for target in TARGETS]
print(json.dumps([one._asdict() | {"fits": one.fits} for one in found]))
"""


def compiled(names, targets):
    """In a process of its own, whose kernels are not those of the interpreter."""
    program = PROGRAM.replace("NAMES", repr(names)).replace("TARGETS", repr(targets))
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True,
        env=environment, timeout=280,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_kernels_compile_without_spills_for_nvidia_and_amd():
    found = compiled(("row_step_kernel",), ("sm_90", "gfx942"))
    assert [(one["kernel"], one["target"]) for one in found] == [
        ("row_step_kernel", "sm_90"), ("row_step_kernel", "gfx942"),
    ]  # fmt: skip
    for one in found:
        assert one["fits"], one
        assert 0 < one["registers"] <= 512
        assert one["occupancy"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_kernel_compiles_without_spills(tmp_path):
    program = (
        "from pathlib import Path; from rich.console import Console;"
        "from bistoch.lab.gpu.table import run_compile_table;"
        f"run_compile_table(Path({str(tmp_path)!r}), Console())"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, env=environment, timeout=3500)
    assert json.loads((tmp_path / "compile-table.json").read_text())


def launched(n, iters):
    q = torch.randn(1, n, 64, requires_grad=True)
    with record_launches(run=False) as forward:
        result = bistoch.elastic_attention(q, q, q, iters=iters, backend="triton")
    with record_launches(run=False) as backward:
        result.sum().backward()
    return len(forward), len(backward)


@pytest.mark.parametrize("iters", [0, 1, 5])
def test_the_model_knows_all_launches(iters):
    found = cost.long_forward(1, 256, 256, 64, iters), cost.long_backward(1, 256, 256, 64, iters)
    assert launched(256, iters) == tuple(work.launches for work in found)
    found = cost.short_forward(1, 32, 32, 64, iters), cost.short_backward(1, 32, 32, 64, iters)
    assert launched(32, iters) == tuple(work.launches for work in found)


def test_the_model_counts_exponentials_and_products_of_the_interpreter(monkeypatch):
    """Each exponential and product of tiles that the kernels take, at sizes that fill all tiles."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder

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
    n, d, iters = 64, 32, 1
    q = torch.randn(1, n, d, requires_grad=True)
    result = bistoch.elastic_attention(q, q, q, iters=iters, backend="triton")
    found = dict(counted)
    result.sum().backward()
    after = {name: counted[name] - found[name] for name in counted}
    models = cost.long_forward(1, n, n, d, iters), cost.long_backward(1, n, n, d, iters)
    for numbers, model in zip((found, after), models, strict=True):
        assert numbers["flops"] == model.half_flops + model.single_flops
        # sums that are rescaled when a peak rises take one more for every row of a tile
        assert model.exponentials <= numbers["exponentials"] <= 1.1 * model.exponentials


def test_expected_ratios_follow_from_exponentials():
    gpu = cost.GPUS["H100"]
    forward, both = cost.ratio(gpu, 16384, 5)
    assert 5 < forward < 2 * 5 + 1
    assert both < forward
    assert cost.ratio(gpu, 64, 5)[0] < 2
