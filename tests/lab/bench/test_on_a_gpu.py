"""A run on a GPU, with torch's answers about the device pretended: none has to be here."""

import json
import warnings
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch.nn.functional import scaled_dot_product_attention
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.functional.kernels.tuning import VARIABLE
from bistoch.lab import machine
from bistoch.lab.bench import Options, measure, run, run_bench
from bistoch.lab.bench.cases import Setting, sequence
from bistoch.lab.bench.contenders import Contender, torch_calls
from bistoch.lab.bench.half import causal_half_contenders, half_contenders
from bistoch.lab.bench.measure import CrashError, Entry, TimeLimits
from bistoch.lab.bench.table import print_results

GIB = 1 << 30
H100 = SimpleNamespace(name="NVIDIA H100", total_memory=80 * GIB, major=9, minor=0)
MI300X = SimpleNamespace(
    name="AMD Instinct MI300X", total_memory=192 * GIB, major=9, minor=4, gcnArchName="gfx942"
)
GPU = torch.device("cuda")
LIMITS = TimeLimits(rounds=2, sample=0.0)
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


@pytest.fixture
def pretended(monkeypatch, use_gpu):
    """Tensors stay where they are if they are sent to a GPU; its errors, none at first."""
    move, errors = torch.Tensor.to, []

    def to(tensor, *where, **options):
        return tensor if where == (GPU,) else move(tensor, *where, **options)

    def synchronize(*_):
        if errors:
            raise torch.AcceleratorError(errors[-1])

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    return errors


def entry(name, function, expected="softmax", **more):
    return Entry(
        Contender(name, lambda task: torch_calls(function, task), expected, **more), Setting()
    )


def on(device, entries, case, expected, timer=lambda *_: 1.0):
    return measure.measure(case, "forward", entries, LIMITS, expected, timer, device=device)


@pytest.mark.usefixtures("pretended")
def test_the_memory_is_that_of_a_call_that_compiles_nothing(case, expected):
    calls = []

    def compiles(*inputs):
        calls.append(torch.ones(0 if calls else 1 << 20))
        return scaled_dot_product_attention(*inputs)

    [cell] = on(GPU, [entry("sdpa", compiles)], case, expected)
    assert cell.memory == cell.memory_allocated < 1 << 20
    # that of the process is another memory
    assert cell.memory_resident is None
    calls.clear()
    [cell] = on(torch.device("cpu"), [entry("sdpa", compiles)], case, expected)
    assert cell.memory_allocated > 1 << 20


def rounded(*inputs):
    return 1.001 * scaled_dot_product_attention(*inputs)


def wrong(*inputs):
    return 1.1 * scaled_dot_product_attention(*inputs)


@pytest.mark.usefixtures("pretended")
def test_a_baseline_that_rounds_more_is_timed_and_marked(case, expected, capsys):
    after = [entry("rounds too", rounded), entry("good", scaled_dot_product_attention)]
    cells = on(GPU, [entry("sdpa", rounded), *after], case, expected)
    # only the baseline may: all ratios are over it
    assert [cell.status for cell in cells] == ["measured", "wrong", "measured"]
    assert cells[2].ratio == 1
    print_results(cells, [], Console(width=200))
    said = capsys.readouterr().out
    assert "1.00 s [1]" in said
    assert "[1] sdpa: output off by 0.001, 1e-05 allowed, but timed as the baseline" in said
    cells = on(GPU, [entry("sdpa", wrong), *after], case, expected)
    assert [cell.status for cell in cells] == ["wrong", "wrong", "failed"]
    cells = on(torch.device("cpu"), [entry("sdpa", rounded), *after], case, expected)
    assert [cell.status for cell in cells] == ["wrong", "wrong", "failed"]


def test_an_error_that_leaves_the_gpu_usable_is_a_cell(case, expected, pretended):
    def fail(*_):
        raise RuntimeError("CUDA error: invalid configuration argument")

    entries = [entry("sdpa", scaled_dot_product_attention), entry("bad", fail)]
    cells = on(GPU, entries, case, expected)
    assert [cell.status for cell in cells] == ["measured", "failed"]


SAID = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize("when", ["verified", "timed"])
def test_an_error_that_loses_the_gpu_ends_the_measurement(when, case, expected, pretended):
    def crash():
        pretended.append(SAID)
        raise RuntimeError(f"{SAID}\nand more")

    rounds = []

    def attend(*inputs):
        return crash() if when == "verified" else scaled_dot_product_attention(*inputs)

    def timer(call, count):
        rounds.append(call)
        # two calls set the pace; of the first round the second fails
        return crash() if when == "timed" and len(rounds) == 4 else 1.0

    entries = [entry("sdpa", scaled_dot_product_attention), entry("bad", attend)]
    with pytest.raises(CrashError, match="bad on n=7, random scores, forward, ended") as one:
        on(GPU, entries, case, expected, timer)
    assert one.value.cell.contender == "bad"
    assert one.value.cell.status == "crashed"
    assert SAID in one.value.cell.reason


@pytest.mark.parametrize("name", ["dense scaling", "sdpa"])
def test_a_run_that_lost_the_gpu_keeps_what_it_has_and_goes_on_without(
    name, tmp_path, measured, pretended, monkeypatch
):
    working = run._measure_here

    def crashing(group, todo, *rest):
        names = [group.entries[0].contender.name, *(one.contender.name for one in todo)]
        if name in names and group.direction != "forward":
            pretended.append(SAID)
            broken = next(one for one in group.entries if one.contender.name == name)
            measure._end_if_lost(run._blank(group, broken), GPU)
        return working(group, todo, *rest)

    monkeypatch.setattr(run, "_measure_here", crashing)
    words = ["--n", "8", "--heads", "1", "--dim", "4", "--device", "cuda", "--out", str(tmp_path)]
    ended = 0
    # one for every kind of scores
    for _ in range(4):
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", *words])
        if result.exit_code == 0:
            break
        ended += 1
        assert result.exit_code == 2
        assert f"bistoch: bench: {name} on n=8" in result.stderr
        assert result.stderr.count("\n") == 1
        assert "this run ended early" in result.stdout
        kept = json.loads((tmp_path / "bench.json").read_text())["cells"]
        assert {cell["status"] for cell in kept} <= {"measured", "crashed", "failed"}
        assert any(cell["status"] == "measured" for cell in kept)
    assert ended == 2
    cells = json.loads((tmp_path / "bench.json").read_text())["cells"]
    assert sum(cell["status"] == "crashed" for cell in cells) == 2
    others = {cell["status"] for cell in cells if cell["direction"] != "forward"}
    assert others == ({"crashed", "failed"} if name == "sdpa" else {"crashed", "measured"})


@pytest.mark.usefixtures("use_gpu")
def test_the_caption_says_what_was_computed_where(case):
    def caption(options, *names):
        cells = [measure.new_cell(case, "forward", entry(name, rounded)) for name in names]
        return run._caption(run._head(options)["configuration"], cells)

    assert caption(OPTIONS, "sdpa") == "1 heads of 4 features, float32, random scores, 1 thread"
    assert caption(on_gpu(), "sdpa").endswith("float32, random scores, NVIDIA H100")
    assert caption(on_gpu(), "sdpa", "elastic triton bf16") == (
        "1 heads of 4 features, bfloat16 where the name ends in bf16, else float32, random scores, "
        "NVIDIA H100"
    )


def test_the_legend_says_what_every_contender_was_allowed(case, capsys):
    allowed = {"sdpa": 1e-5, "sdpa flash bf16": 0.02, "FlashSinkhorn": 3.4e-5}
    cells = [measure.new_cell(case, "forward", entry(name, rounded)) for name in allowed]
    for cell in cells:
        cell.tolerance = allowed[cell.contender]
    print_results(cells, [], Console(width=1000))
    assert (
        "largest error at most 1e-05 of the largest entry (3.4e-05 for FlashSinkhorn; 0.02 for "
        "sdpa flash bf16); best"
    ) in capsys.readouterr().out


@pytest.mark.parametrize("rows", [half_contenders, causal_half_contenders])
def test_a_kernel_that_torch_lacks_is_skipped_with_its_reason(rows, case, expected, monkeypatch):
    def attend(*_, **__):
        for said in (
            "Memory efficient kernel not used because:", "it is disabled",
            "cuDNN attention kernel not used because:", "this GPU has none",
        ):  # fmt: skip
            warnings.warn(f"{said} (Triggered internally at sdp_utils.cpp:1.)", stacklevel=2)
        raise RuntimeError("No available kernel. Aborting execution.")

    baseline = entry("sdpa", scaled_dot_product_attention)
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", attend)
    kernel = Entry(rows()["sdpa cudnn bf16"], Setting())
    cell = on(torch.device("cpu"), [baseline, kernel], case, expected)[1]
    assert (cell.status, cell.reason) == ("skipped", "not available here: this GPU has none")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_torch_has_no_kernel_of_cudnn(case, expected):
    rows = half_contenders()
    entries = [Entry(rows[name], Setting()) for name in ("sdpa flash bf16", "sdpa cudnn bf16")]
    cells = on(torch.device("cpu"), entries, case, expected)
    assert [cell.status for cell in cells] == ["measured", "skipped"]
    assert cells[1].reason.startswith("not available here: No viable backend")


def test_every_size_has_a_program_of_flex_attention_of_its_own(case, expected, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: asked.append("reset"))
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: asked.append(options) or function
    )
    entries = [Entry(half_contenders()["flex bias bf16"], Setting())]
    on(torch.device("cpu"), entries, case, expected)
    assert asked[:2] == ["reset", {"dynamic": False}]
