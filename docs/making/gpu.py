"""Tables of the page on GPUs: what compilers said, and what the cost model expects."""

import json
import re
from collections import defaultdict
from typing import Any

from making.drawing import DOCS, put_table

from bistoch.lab.gpu import causal, cost
from bistoch.lab.gpu.compiled import DEVICES, MASKS

# what kernels are called on the page; variants of one kernel share a row
NAMES = {
    "row_step_kernel": "row and column step", "column_step_kernel": "row and column step",
    "output_kernel": "output", "value_grad_kernel": "values, backward",
    "row_dots_kernel": "rows, backward",
    "row_grad_kernel": "vectors, backward", "column_grad_kernel": "vectors, backward",
    "token_grad_kernel": "tokens, backward", "bias_grad_kernel": "bias, backward",
    "strip_kernel": "fused step", "strip_grad_kernel": "fused step, backward",
    "join_kernel": "fused, reduction of partial sums",
    "join_grad_kernel": "fused, reduction of partial sums",
    "heads_kernel": "short", "heads_grad_kernel": "short, backward", "decide_kernel": "tolerance",
    "error_kernel": "column error", "slack_step_kernel": "prices, step",
    "slack_product_kernel": "prices, backward", "slack_grad_kernel": "prices, scores, backward",
}  # fmt: skip


# those of causal balance, whose tokens have this in front of them in the record
CAUSAL = "causal, "
CAUSAL_NAMES = {
    "attend_kernel": "forward", "replay_kernel": "column sums again",
    "row_dots_kernel": "rows, backward", "vectors_kernel": "vectors, backward",
    "query_grad_kernel": "queries, backward", "key_grad_kernel": "keys and values, backward",
    "bias_grad_kernel": "bias, backward", "step_rows_kernel": "step, rows",
    "step_keys_kernel": "step, keys", "step_close_kernel": "step, end of a block",
}  # fmt: skip


def gpu_compiled() -> None:
    """Registers, shared memory and occupancy from the record of `bistoch bench --compile-table`."""
    path = DOCS.parent / "benchmarks" / "gpu" / "compile-table.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    counts = [
        [name, *(str(sum(_is_of(row, name, mask) for row in rows)) for mask in MASKS)]
        for name in ("bf16", "fp16", "fp32", "scores")
    ]
    put_table("gpu.md", "gpu_masks", ("tokens", *MASKS), counts)
    others = [row for row in rows if not row["tokens"].startswith(CAUSAL)]
    _put_compiled("gpu_compiled", others, NAMES)
    own = [
        row | {"tokens": row["tokens"].removeprefix(CAUSAL)}
        for row in rows
        if row["tokens"].startswith(CAUSAL)
    ]
    _put_compiled("gpu_causal_compiled", own, CAUSAL_NAMES)


def _is_of(row: dict[str, Any], tokens: str, mask: str) -> bool:
    """Whether a row of the record has such tokens, and such a mask."""
    return tokens in row["tokens"] and row["mask"] == mask


def _put_compiled(table: str, kernels: list[dict[str, Any]], names: dict[str, str]) -> None:
    """A table with a row for each kernel and width, the most of all masks, tiles and half types."""
    found: dict[tuple[str, str], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for row in kernels:
        name, *switches = row["kernel"].split()
        label = names.get(name, name.removesuffix("_kernel").replace("_", " "))
        label = label.replace("short", "plans") if "PLAN" in switches else label
        tokens = row["tokens"].replace("bf16", "half").replace("fp16", "half")
        # tiles of all sizes that heads of a width are filled up to
        tokens = re.sub(r", \d+ (keys|x \d+), d =", ", d =", tokens)
        found[label, tokens][row["target"]].append(row)
    rows = [
        [kernel, tokens, *(_cell(targets[target]) for target in DEVICES)]
        for (kernel, tokens), targets in found.items()
    ]
    heads = ("kernel", "tokens", *(device.name for device in DEVICES.values()))
    put_table("gpu.md", table, heads, rows)


def _cell(rows: list[dict[str, Any]]) -> str:
    """The most that a variant needs."""
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


def gpu_causal_expected() -> None:
    """The same for causal balance over causal flash attention, by the number of heads."""
    counts = (32, 64, 128, 256, 1024)
    rows = [
        [
            str(n),
            *(
                " / ".join(f"{x:.1f}" for x in causal.ratio(gpu, n, heads=heads))
                for gpu in cost.GPUS.values()
                for heads in counts
            ),
        ]
        for n in (512, 1024, 2048, 4096, 16384, 65536)
    ]
    names = [(name, heads) for name in cost.GPUS for heads in counts]
    heads = ("n", *(f"{name}, {x} heads" if x == counts[0] else str(x) for name, x in names))
    put_table("gpu.md", "gpu_causal_expected", heads, rows)
