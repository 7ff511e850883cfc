"""A run on a GPU, with torch's answers about the device pretended: none has to be here."""

import json
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from bistoch.functional.kernels.tuning import VARIABLE
from bistoch.lab import machine
from bistoch.lab.bench import Options, measure, run, run_bench
from bistoch.lab.bench.cases import Setting, sequence
from bistoch.lab.bench.contenders import Contender
from bistoch.lab.bench.measure import Entry

GIB = 1 << 30
H100 = SimpleNamespace(name="NVIDIA H100", total_memory=80 * GIB, major=9, minor=0)
MI300X = SimpleNamespace(
    name="AMD Instinct MI300X", total_memory=192 * GIB, major=9, minor=4, gcnArchName="gfx942"
)
OPTIONS = Options(n=(8,), heads=1, dim=4, rounds=1, threads=1)


@pytest.fixture
def use_gpu(monkeypatch):
    """Pretend that a GPU is here."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv(VARIABLE, raising=False)

    def use(gpu, **versions):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
        monkeypatch.setattr(machine, "_version", versions.get)

    use(H100, triton="3.7")
    return use


@pytest.fixture
def measured(monkeypatch):
    """The keys of what is measured, without the work and the picture."""
    done = []
    monkeypatch.setattr(run, "load_average", lambda: 0.0)
    monkeypatch.setattr(run, "_draw", lambda *_: None)

    def pretend(group, todo, *_):
        cells = [run._blank(group, entry) for entry in todo]
        for cell in cells:
            cell.seconds = cell.ratio = cell.memory = cell.others = 1.0
            done.append(cell.key)
        return cells

    monkeypatch.setattr(run, "_measure_here", pretend)
    return done


def on_gpu(**options):
    return Options(n=(8,), heads=1, dim=4, rounds=1, threads=1, device="cuda", **options)


def quiet():
    return Console(quiet=True)


def test_a_record_says_which_gpu_it_is_from(use_gpu, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert run._head(on_gpu())["machine"]["gpu"] == {
        "name": "NVIDIA H100", "memory": 80 * GIB, "architecture": "9.0",
        "platform": "CUDA 13.0", "versions": {"triton": "3.7", "flash-sinkhorn": None},
    }  # fmt: skip
    use_gpu(MI300X, **{"pytorch-triton-rocm": "3.6", "flash-sinkhorn": "0.3"})
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert run._head(on_gpu())["machine"]["gpu"] == {
        "name": "AMD Instinct MI300X", "memory": 192 * GIB, "architecture": "gfx942",
        "platform": "ROCm 7.1", "versions": {"triton": "3.6", "flash-sinkhorn": "0.3"},
    }  # fmt: skip


def test_cells_of_another_gpu_or_of_other_blocks_are_not_kept(
    tmp_path, use_gpu, measured, monkeypatch
):
    def measures():
        measured.clear()
        run_bench(on_gpu(), tmp_path, quiet())
        return bool(measured)

    assert measures()
    assert not measures()
    use_gpu(MI300X, triton="3.7")
    assert measures()
    use_gpu(H100, triton="3.8")
    assert measures()
    monkeypatch.setenv(VARIABLE, "steps=64x32x4x2")
    assert measures()
    assert not measures()
    found = json.loads((tmp_path / "bench.json").read_text())["configuration"]
    assert found["gpu"]["name"] == "NVIDIA H100"
    assert found["blocks"] == "steps=64x32x4x2"


@pytest.mark.usefixtures("use_gpu")
def test_a_record_of_the_cpu_says_nothing_of_gpus(monkeypatch):
    before = run._head(OPTIONS)
    monkeypatch.setenv(VARIABLE, "steps=64x32x4x2")
    assert run._head(OPTIONS)["configuration"] == before["configuration"]
    assert {"gpu", "blocks"}.isdisjoint(before["configuration"])
    assert "gpu" not in before["machine"]


def test_the_memory_of_the_gpu_decides_what_fits(use_gpu, monkeypatch):
    case, gpu = sequence(1024, 8, 64, "random"), torch.device("cuda")
    # about 32 GiB
    dense = Entry(Contender("dense", lambda task: None, "elastic", lambda *_: 1024), Setting())
    plan = Entry(Contender("hard", lambda task: None, "hard plan"), Setting())
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=GIB))
    assert measure.refusal(case, "forward", dense, gpu) is None
    assert "32 GiB" in measure.refusal(case, "forward", dense)
    # the expected result is that of the CPU
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=1 << 20))
    assert "in float64" in measure.refusal(case, "forward", plan, gpu)
    use_gpu(SimpleNamespace(total_memory=40 * GIB))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=1000 * GIB))
    assert "32 GiB" in measure.refusal(case, "forward", dense, gpu)
    assert measure.refusal(case, "forward", plan, gpu) is None


@pytest.mark.parametrize(("room", "status"), [(4 * GIB, "skipped"), (1000 * GIB, "measured")])
def test_the_memory_of_a_shorter_sequence_is_compared_with_that_of_the_gpu(
    room, status, tmp_path, use_gpu, measured, monkeypatch
):
    use_gpu(SimpleNamespace(**{**vars(H100), "total_memory": room}))
    working = run._measure_here

    def short(*args):
        cells = working(*args)
        for cell in cells:
            cell.seconds, cell.memory = 1e-9, 1 << 20
        return cells

    monkeypatch.setattr(run, "_measure_here", short)
    options = Options(n=(64, 4096), heads=1, dim=4, operators=True, device="cuda")
    found = json.loads(run_bench(options, tmp_path, quiet()).read_text())["cells"]
    assert {cell["status"] for cell in found if cell["shape"][-2] == 4096} == {status}
