"""Kernels compiled for GPUs that are not here, and the model of their cost."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch

import bistoch
from bistoch.functional.kernels.gpu import record_launches
from bistoch.lab.gpu import cost, table
from bistoch.lab.gpu.compiled import TOKENS, WIDTHS

pytest.importorskip("triton")

PROGRAM = """
import json, torch
from bistoch.lab.gpu import compiled, table
for arch in ("gfx90a", "gfx950"):
    compiled.DEVICES[arch] = compiled.DEVICES["gfx942"]._replace(arch=arch)
launches = table.long_launches(torch.bfloat16, 64)
launches += table.fused_launches(torch.bfloat16, 512, 64)
launches = compiled.distinct(launches)
some = [x for x in launches if compiled.name_of(x) in NAMES]
kernels = [compiled.specialise(x, target) for x in some for target in TARGETS]
found = [compiled.compile_kernel(x) for x in kernels]
print(json.dumps([one._asdict() | {"fits": one.fits} for one in found]))
"""


def in_a_process(program, timeout=280):
    """What a program prints, of kernels that are not those of the interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True,
        env={**os.environ, "TRITON_INTERPRET": "0"}, timeout=timeout,
    )  # fmt: skip
    return json.loads(done.stdout)


def compiled(names, targets):
    """In a process of its own, whose kernels are not those of the interpreter."""
    return in_a_process(PROGRAM.replace("NAMES", repr(names)).replace("TARGETS", repr(targets)))


def test_kernels_compile_without_spills_for_nvidia_and_amd():
    found = compiled(("row_step_kernel", "strip_grad_kernel JOIN"), ("sm_90", "gfx942"))
    assert [(one["kernel"], one["target"]) for one in found] == [
        ("row_step_kernel", "sm_90"), ("row_step_kernel", "gfx942"),
        ("strip_grad_kernel JOIN", "sm_90"), ("strip_grad_kernel JOIN", "gfx942"),
    ]  # fmt: skip
    for one in found:
        assert one["fits"], one
        assert 0 < one["registers"] <= 512
        assert one["occupancy"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gfx90a", "gfx950"])
def test_half_precision_compiles_for_other_architectures_of_amd(target):
    """They have no products of 11 bits: those with plans and gradients are float32 there."""
    (found,) = compiled(("output_kernel",), (target,))
    assert found["registers"] > 0


SIZES = """
import json, torch, bistoch
from bistoch.lab.gpu import compiled, scan

def tokens(heads, n, d, first):
    # slices of what lies in memory anywhere
    return torch.zeros(heads * n * d + first)[first:].reshape(heads, n, d).requires_grad_()

def kernels(call):
    return sorted({str(compiled.specialise(x, "sm_90")) for x in scan._recorded(call, "sm_90")})

def long(heads, n, m, iters, first, mask):
    q, k, v = tokens(heads, n, 64, first), tokens(heads, m, 64, first), tokens(heads, m, 64, 0)
    return kernels(lambda: bistoch.elastic_attention(
        q, k, v, iters=iters, mask=mask, backend="triton"))

def sequence(heads, n, block, mask):
    q = tokens(heads, n, 64, 0)
    return kernels(lambda: bistoch.causal_elastic_attention(
        q, q, q, block=block, mask=mask, backend="triton"))

def prices(n, m):
    scores = torch.zeros(3, n, m, requires_grad=True)
    return kernels(lambda: bistoch.match(
        scores, row_price=0.1, column_price=0.1, iters=2, backend="triton").plan)

def bias(n, m):
    return torch.zeros(n, m, requires_grad=True)

print(json.dumps({
    "elastic": [long(1, 1024, 1024, 2, 0, None), long(3, 1021, 997, 10, 1, None),
                long(2, 1, 300, 1, 0, None)],
    "elastic with a bias": [long(2, 1024, 1024, 2, 0, bias(1024, 1024)),
                            long(3, 1021, 997, 10, 1, bias(1021, 997)),
                            long(3, 1021, 997, 3, 0, bias(1, 997))],
    "causal": [sequence(1, 2048, 16, None), sequence(3, 1021, 7, None)],
    "causal with a bias": [sequence(2, 1024, 16, bias(1024, 1024)),
                           sequence(3, 1021, 7, bias(1021, 1021))],
    "prices": [prices(304, 208), prices(301, 197)],
}))
"""


def test_sizes_make_no_other_kernels():
    """What a launch compiles is what the table has, whatever lengths, heads, iterations, slices."""
    # as many as docs/gpu.md says
    counts = {"elastic": 12, "elastic with a bias": 14, "causal": 6, "causal with a bias": 7}
    for name, (first, *others) in in_a_process(SIZES).items():
        assert len(first) == counts.get(name, len(first)) > 0, name
        for other in others:
            assert other == first, name


SCAN = """
import json, sys
from pathlib import Path
from rich.console import Console
from bistoch.lab.gpu.scan import run_scan
print(json.dumps(list(run_scan(2, (), Path(PATH), Console(file=sys.stderr)).values())))
"""


@pytest.mark.slow
def test_kernels_of_random_calls_are_compiled_once(tmp_path):
    program = SCAN.replace("PATH", repr(str(tmp_path / "scan.json")))
    first = in_a_process(program)
    assert len(first) == 2
    assert json.loads((tmp_path / "scan.json").read_text()) == first
    assert all(row["registers"] > 0 for row in first)
    assert in_a_process(program) == first


def test_registers_are_bounded_only_where_the_table_says_so():
    """By the register file of a multiprocessor; the usual call leaves it to the compiler."""
    found = {
        (dtype, mask): table.long_launches(dtype, 64, mask)
        + table.fused_launches(dtype, 64, 64, mask)
        for dtype in (torch.bfloat16, torch.float32)
        for mask in ("no mask", "bias, padding")
    }
    bounded = {
        case: {x.kernel.__name__ for x in launches if "maxnreg" in x.arguments}
        for case, launches in found.items()
    }
    usual = bounded[torch.bfloat16, "no mask"]
    assert not usual & {"row_step_kernel", "column_step_kernel", "output_kernel", "strip_kernel"}
    assert "strip_kernel" in bounded[torch.bfloat16, "bias, padding"]
    assert {"row_step_kernel", "strip_kernel"} <= bounded[torch.float32, "no mask"]
    for n in (4, 32, 64):
        found[n] = table.plan_launches(n, "padding")
    for launch in (launch for launches in found.values() for launch in launches):
        given = launch.arguments
        if "maxnreg" in given:
            assert given["maxnreg"] == min(255, 65536 // (32 * given["num_warps"]))


def test_padding_leaves_room_for_half_as_many_keys_in_the_fused_form():
    for mask, most in (("no mask", 512), ("padding", 256), ("bias", 256)):
        assert table.fused_launches(torch.bfloat16, most, 64, mask)
        assert not table.fused_launches(torch.bfloat16, 2 * most, 64, mask)


TREE = Path(__file__).parents[3]
RECORD = TREE / "benchmarks" / "gpu" / "compile-table.json"


def test_in_the_record_nothing_spills():
    """Every kernel for every GPU, with every width, dtype and mask."""
    targets = defaultdict(set)
    for row in json.loads(RECORD.read_text()):
        assert row["fits"], row
        assert row["spills"] == 0, row
        targets[row["kernel"], row["tokens"], row["mask"]].add(row["target"])
    assert len(targets) > 1400
    assert all(found == {"sm_80", "sm_90", "sm_100", "gfx942"} for found in targets.values())
    for kernel, family in (("attend_kernel", "causal, "), ("output_kernel", "")):
        for name, masks in TOKENS.items():
            for d in WIDTHS:
                wanted = {(kernel, f"{family}{name}, d = {d}", mask) for mask in masks}
                assert wanted <= targets.keys()


def test_the_page_shows_all_of_the_record():
    text = (TREE / "docs" / "gpu.md").read_text()
    tables = {
        name: text.split(f"<!-- measured: {name} -->")[1].split("<!-- end -->")[0].split("\n")[4:]
        for name in ("gpu_masks", "gpu_compiled", "gpu_causal_compiled")
    }
    cells = {
        name: [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line]
        for name, lines in tables.items()
    }
    for rows in cells.values():
        assert all(all(row) for row in rows)
        assert not any("spilled" in cell for row in rows for cell in row)
    counts = sum(int(cell) for row in cells["gpu_masks"] for cell in row[1:])
    assert counts == len(json.loads(RECORD.read_text()))
    assert f"{counts:,} kernels" in " ".join(text.split())


def test_the_page_says_what_spills_of_random_calls():
    """Widths of tokens or values that are no multiple of 8, and nothing else."""
    rows = json.loads(RECORD.with_name("compile-scan.json").read_text())
    bad = [row for row in rows if not row["fits"]]
    for row in bad:
        assert any(int(width) % 8 for width in re.findall(r"\b[de] = (\d+)", row["tokens"])), row
        assert row["target"] == "sm_80"
    text = " ".join((TREE / "docs" / "gpu.md").read_text().split())
    spills = [row["spills"] for row in bad]
    assert f"of {len(rows)}, which are in `benchmarks/gpu/compile-scan.json`" in text
    assert f"{len(bad)} spill {min(spills)} to {max(spills)} bytes" in text


FINGERPRINTS = """
import json
from bistoch.lab.gpu import compiled, table
targets = tuple(compiled.DEVICES)
found = [
    compiled.specialise(launch, target).fingerprint
    for _, launches in table._by_target(targets)
    for target, launch in launches.items()
]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_record_is_of_these_kernels():
    """What was compiled, with what tiles, is what would be launched; nothing is compiled here."""
    known = {row["key"] for row in json.loads(RECORD.read_text())}
    assert known == set(in_a_process(FINGERPRINTS)), "run bistoch bench --compile-table again"


@pytest.mark.slow
@pytest.mark.timeout(10800)
def test_every_kernel_compiles_without_spills(tmp_path):
    program = (
        "from pathlib import Path; from rich.console import Console;"
        "from bistoch.lab.gpu.table import run_compile_table;"
        f"run_compile_table(Path({str(tmp_path)!r}), Console())"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, env=environment, timeout=10700)
    assert json.loads((tmp_path / "compile-table.json").read_text())


def launched(n, iters):
    q = torch.randn(1, n, 64, requires_grad=True)
    with record_launches(run=False) as forward:
        result = bistoch.elastic_attention(q, q, q, iters=iters, backend="triton")
    with record_launches(run=False) as backward:
        result.sum().backward()
    return len(forward), len(backward)


# the length of a head of float32 tokens that takes a form, and the model of it
FORMS = {
    "long": (256, cost.long_forward, cost.long_backward),
    "fused": (128, cost.fused_forward, cost.fused_backward),
    "short": (32, cost.short_forward, cost.short_backward),
}


@pytest.mark.parametrize("iters", [0, 1, 5])
@pytest.mark.parametrize("form", FORMS)
def test_the_model_knows_all_launches(form, iters):
    n, *models = FORMS[form]
    assert launched(n, iters) == tuple(model(1, n, n, 64, iters).launches for model in models)


@pytest.mark.parametrize("form", FORMS)
def test_the_model_counts_exponentials_and_products_of_the_interpreter(form, monkeypatch):
    """Each exponential and product of tiles that the kernels take, at sizes that fill all tiles."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder

    from bistoch.functional.elastic.triton import blocks

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
    if form == "long":
        monkeypatch.setattr(blocks, "STRIP_TOKENS", {True: 0, False: 0})
    _, *models = FORMS[form]
    n, d, iters = 32 if form == "short" else 64, 32, 2
    q = torch.randn(1, n, d, requires_grad=True)
    result = bistoch.elastic_attention(q, q, q, iters=iters, backend="triton")
    found = dict(counted)
    result.sum().backward()
    after = {name: counted[name] - found[name] for name in counted}
    for numbers, model in zip((found, after), models, strict=True):
        work = model(1, n, n, d, iters)
        assert numbers["flops"] == work.flops
        # a few more for vectors: rows of a tile whose peak rises, and sums of parts that are joined
        assert work.exponentials <= numbers["exponentials"] <= 1.15 * work.exponentials


def test_the_model_counts_the_bytes_of_the_tensors():
    """Main memory is read and written once for every tensor of a launch, up to a few vectors."""
    n, d, iters = 256, 64, 3
    tokens = [torch.zeros(1, n, d, dtype=torch.bfloat16) for _ in range(3)]
    for m, model in ((1024, cost.long_forward), (512, cost.fused_forward)):
        keys = [torch.zeros(1, m, d, dtype=torch.bfloat16) for _ in range(2)]
        with record_launches(run=False) as launches:
            bistoch.elastic_attention(tokens[0], *keys, iters=iters, backend="triton")
        moved = 0
        for launch in launches:
            # what stands for a mask that is not there is not read
            given = [x for name, x in launch.arguments.items() if name != "mask"]
            tensors = {x.data_ptr(): x for x in given if torch.is_tensor(x)}
            moved += sum(x.numel() * x.element_size() for x in tensors.values())
        assert moved == pytest.approx(model(1, n, m, d, iters).bytes, rel=0.25)


def test_a_wrong_device_is_refused_before_anything_is_compiled(tmp_path):
    from typer.testing import CliRunner

    from bistoch.cli import app

    out = tmp_path / "new"
    arguments = ["bench", "--compile-table", "--device", "nope", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "nope" in result.stderr
    assert not out.exists()


def test_random_calls_alone_are_refused(tmp_path):
    from typer.testing import CliRunner

    from bistoch.cli import app

    result = CliRunner().invoke(app, ["bench", "--random-calls", "3", "--out", str(tmp_path / "x")])
    assert result.exit_code == 2
    assert "--random-calls 3 compiles kernels and times nothing; add --compile" in result.stderr


def test_expected_ratios_follow_from_exponentials():
    gpu = cost.GPUS["H100"]
    forward, _ = cost.ratio(gpu, 16384, 5)
    assert 5 < forward < 2 * 5 + 1
    # one pass an iteration instead of two
    many = [form(1024, 512, 512, 64, 10) for form in (cost.fused_forward, cost.long_forward)]
    fused, long = (work.seconds(gpu, False) for work in many)
    assert 0.5 < fused / long < 0.6
    assert cost.ratio(gpu, 64, 5)[0] < 2
