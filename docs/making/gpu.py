"""Tables of the page on GPUs: what compilers said, and what the cost model expects."""

import json
from collections import defaultdict
from typing import Any

from making.drawing import DOCS, put_table

from bistoch.lab.gpu import cost
from bistoch.lab.gpu.compiled import DEVICES

# what kernels are called on the page; variants of one kernel share a row
NAMES = {
    "row_step_kernel": "row and column step", "column_step_kernel": "row and column step",
    "output_kernel": "output", "value_grad_kernel": "values, backward",
    "row_grad_kernel": "vectors, backward", "column_grad_kernel": "vectors, backward",
    "token_grad_kernel": "tokens, backward", "bias_grad_kernel": "bias, backward",
    "strip_kernel": "fused step", "strip_grad_kernel": "fused step, backward",
    "join_kernel": "fused, reduction of partial sums",
    "join_grad_kernel": "fused, reduction of partial sums",
    "heads_kernel": "short", "heads_grad_kernel": "short, backward", "decide_kernel": "tolerance",
    "error_kernel": "tolerance", "slack_step_kernel": "prices, step",
    "slack_product_kernel": "prices, backward", "slack_grad_kernel": "prices, scores, backward",
}  # fmt: skip


def gpu_compiled() -> None:
    """Registers, shared memory and occupancy from the record of `bistoch bench --compile-table`."""
    path = DOCS.parent / "benchmarks" / "gpu" / "compile-table.json"
    found: dict[tuple[str, str], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for row in json.loads(path.read_text(encoding="utf-8")):
        name, *switches = row["kernel"].split()
        label = NAMES.get(name, name.removesuffix("_kernel").replace("_", " "))
        label = label.replace("short", "plans") if "PLAN" in switches else label
        found[label, row["tokens"]][row["target"]].append(row)
    rows = [
        [kernel, tokens, *(_cell(targets[target]) for target in DEVICES)]
        for (kernel, tokens), targets in found.items()
    ]
    heads = ("kernel", "tokens", *(device.name for device in DEVICES.values()))
    put_table("gpu.md", "gpu_compiled", heads, rows)


def _cell(rows: list[dict[str, Any]]) -> str:
    """The most that a variant needs."""
    if not rows:
        return ""
    registers, shared, spills = (
        max(x[name] for x in rows) for name in ("registers", "shared", "spills")
    )
    least = min(x["occupancy"] for x in rows)
    spilled = f", {spills} spilled" if spills else ""
    return f"{registers} / {shared / 1024:.0f} / {100 * least:.0f} %{spilled}"


def gpu_expected() -> None:
    """Expected time over that of flash attention, forward / forward and backward."""
    iterations = (1, 3, 5, 10)
    rows = [
        [
            str(n),
            *(
                " / ".join(f"{x:.1f}" for x in cost.ratio(gpu, n, t))
                for gpu in cost.GPUS.values()
                for t in iterations
            ),
        ]
        for n in (64, 128, 256, 512, 1024, 4096, 16384, 65536)
    ]
    names = [(name, t) for name in cost.GPUS for t in iterations]
    heads = ("n", *(f"{name}, T = {t}" if t == 1 else f"T = {t}" for name, t in names))
    put_table("gpu.md", "gpu_expected", heads, rows)
