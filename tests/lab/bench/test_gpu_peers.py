"""FlashSinkhorn beside us, with dense stand-ins that keep to its documentation."""

import sys
import types

import pytest
import torch

from bistoch.lab.bench import Options, plan, run
from bistoch.lab.bench.cases import Case, Setting, sequence
from bistoch.lab.bench.contenders import attention_contenders
from bistoch.lab.bench.expected import ExpectedResults
from bistoch.lab.bench.gpu_peers import PACKAGE, gpu_peers, missing_gpu_peers
from bistoch.lab.bench.measure import Entry, TimeLimits, measure, refusal

SDPA = Entry(attention_contenders()["sdpa"], Setting())


def check(case, direction, expected, **options):
    """Those that were not measured."""
    entries = [SDPA, Entry(gpu_peers()["FlashSinkhorn"], Setting())]
    limits = TimeLimits(rounds=1, sample=0.0)
    cells = measure(case, direction, entries, limits, expected, lambda *_: 1.0, **options)
    return {cell.contender: cell.reason for cell in cells if cell.status != "measured"}


def cost(x, y, scale):
    return scale * torch.cdist(x.double(), y.double()).square()


def alternating(x, y, a, b, *, eps, n_iters, cost_scale, allow_tf32):
    """`f = -eps LSE((g - C) / eps + log b)` and the same for g, from zero."""
    f, g, c = torch.zeros_like(a).double(), torch.zeros_like(b).double(), cost(x, y, cost_scale)
    for _ in range(n_iters):
        f = -eps * torch.logsumexp((g - c) / eps + b.double().log(), 1)
        g = -eps * torch.logsumexp((f[:, None] - c) / eps + a.double().log()[:, None], 0)
    return f.float(), g.float()


def apply_plan(x, y, f_hat, g_hat, log_a, log_b, mat, *, eps, axis, cost_scale):
    """`P = a b exp((f^ + g^ + 2 cost_scale x y) / eps)` with the norms taken off potentials."""
    logs = (f_hat[:, None] + g_hat + 2 * cost_scale * x @ y.mT) / eps
    plan_ = (logs + log_a[:, None] + log_b).exp()
    return plan_ @ mat if axis == 1 else plan_.mT @ mat


@pytest.fixture
def pretended(monkeypatch):
    kernels = types.ModuleType(f"{PACKAGE}.kernels")
    kernels.sinkhorn_flashstyle_alternating = alternating
    kernels.apply_plan_mat_flashstyle = apply_plan
    module = types.ModuleType(PACKAGE)
    module.__spec__ = types.SimpleNamespace(name=PACKAGE)
    monkeypatch.setitem(sys.modules, PACKAGE, module)
    monkeypatch.setitem(sys.modules, f"{PACKAGE}.kernels", kernels)


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("scores", ["random", "peaked"])
def test_it_is_asked_for_our_plan(scores, tmp_path):
    case, expected = Case("n=24", "attention", (1, 2, 24, 8), scores), ExpectedResults(tmp_path)
    assert check(case, "forward", expected) == {}
    # it has no gradient of the plan
    assert set(check(case, "forward+backward", expected)) == {"FlashSinkhorn"}


def test_it_is_timed_on_a_gpu_if_it_is_installed(pretended, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    entries = plan.plan(Options(n=(8,), device="cuda"))[0].entries
    named = [entry.contender.name for entry in entries]
    assert named.count("FlashSinkhorn") == 1
    assert {"sdpa flash bf16", "sdpa cudnn bf16", "flex bias bf16", "dense log-domain"} <= {*named}
    assert run._remarks(Options(n=(8,), device="cuda")) == []


@pytest.mark.skipif(not missing_gpu_peers(), reason="it is installed")
def test_it_is_left_out_with_a_reason(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    options = Options(n=(8,), device="cuda")
    named = [entry.contender.name for entry in plan.plan(options)[0].entries]
    assert "FlashSinkhorn" not in named
    assert run._remarks(options) == [
        "FlashSinkhorn is not installed: pip install flash-sinkhorn"
    ]  # fmt: skip


def test_it_is_not_run_where_its_limit_takes_too_long_to_verify():
    entry = Entry(gpu_peers()["FlashSinkhorn"], Setting())
    said = [refusal(sequence(n, 1, 64, "peaked"), "forward", entry) for n in (8192, 16384)]
    assert said == [None, "verifying it in float64 takes too long beyond 8192 tokens"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.skipif(bool(missing_gpu_peers()), reason="FlashSinkhorn is not installed")
def test_it_is_right_on_a_device(tmp_path):
    case, expected = Case("n=64", "attention", (1, 2, 64, 16), "random"), ExpectedResults(tmp_path)
    assert check(case, "forward", expected, device=torch.device("cuda")) == {}
