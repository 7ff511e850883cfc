"""From words of a user to numbers, pictures and a report."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from bistoch.integrations import huggingface
from bistoch.integrations.huggingface.layers import count_heads
from bistoch.lab.files import write_whole
from bistoch.lab.inspect.load import Subject, load_subject
from bistoch.lab.inspect.measure import Measured, measure
from bistoch.lab.inspect.page import print_summary, write_page
from bistoch.lab.inspect.swap import operator_for, swap_all, swap_heads, swapped_plan

Head = tuple[int, int]
# heads whose plans are drawn if the user names none
SHOWN = 3
# texts that are written out in the command of the report
SPELLED = 3


def run_inspect(
    name: str,
    *,
    texts: Sequence[str] = (),
    images: Sequence[Path] = (),
    lams: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 1.0),
    heads: Sequence[Head] = (),
    each_head: bool = True,
    out: Path,
    console: Console,
) -> Path:
    """Look inside a model and write `report.html` and `inspect.json`; returns the report.

    Args:
        name: a folder or a name on the hub.
        texts, images: what the model reads or sees.
        lams: elasticities to swap into all heads at once.
        heads: layers and heads whose plans are drawn; by default those with the fullest keys.
        each_head: also swap every head alone, at the largest elasticity.
        out: a folder for the report.
        console: where the summary is printed.
    """
    for lam in lams:
        if not 0 <= lam <= 1:
            raise ValueError(f"inspect: lam must be in [0, 1]; but it is {lam}")
    with console.status("loading the model"):
        subject = load_subject(name, texts, images)
    with console.status("measuring its heads"):
        measured = measure(subject)
    shown = _choose(measured, heads)
    refusal = _why_no_swap(subject)
    effects: dict[float, dict[str, float]] = {}
    tolerance, balanced = None, {}
    if refusal is None and lams:
        effects, tolerance = _swap(subject, lams, each_head, console)
        strongest = max(lams)
        balanced = {head: swapped_plan(subject, *head, strongest) for head in shown}
    out.mkdir(parents=True, exist_ok=True)
    found = _numbers(subject, measured, effects, tolerance, refusal)
    write_whole(out / "inspect.json", json.dumps(found, indent=1, ensure_ascii=False).encode())
    report = write_page(
        out / "report.html", subject, measured, effects, tolerance, shown, balanced, refusal,
        _command(name, texts, images, lams, heads, each_head),
    )  # fmt: skip
    print_summary(console, subject, measured, effects, tolerance, refusal)
    console.print(f"\nwrote {report}", highlight=False, soft_wrap=True)
    return report


def _command(
    name: str,
    texts: Sequence[str],
    images: Sequence[Path],
    lams: Sequence[float],
    heads: Sequence[Head],
    each_head: bool,
) -> str:
    """The words of the terminal that make the report again; many texts are left to the reader."""
    words = ["bistoch", "inspect", name]
    for text in texts[:SPELLED]:
        words += ["--text", text]
    for image in images:
        words += ["--images", str(image)]
    for lam in lams:
        words += ["--lam", f"{lam:g}"]
    for layer, head in heads:
        words += ["--head", f"{layer}.{head}"]
    more = "" if len(texts) <= SPELLED else f"   # and {len(texts) - SPELLED} texts more"
    return shlex.join([*words, *([] if each_head else ["--no-each-head"])]) + more


def _swap(
    subject: Subject, lams: Sequence[float], each_head: bool, console: Console
) -> tuple[dict[float, dict[str, float]], Tensor | None]:
    layers = huggingface.attention_layers(subject.model)
    counts = [count_heads(name, layer) for name, layer in layers.items()]
    total = len(lams) + (sum(counts) if each_head else 0)
    columns = (TextColumn("swapping heads"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)

        def step() -> None:
            progress.advance(task)

        effects = swap_all(subject, sorted(lams), step)
        tolerance = swap_heads(subject, max(lams), counts, step) if each_head else None
    return effects, tolerance


def _why_no_swap(subject: Subject) -> str | None:
    """A sentence if nothing can be swapped into the model."""
    if huggingface.converted_layers(subject.model):
        return (
            "This model is converted already: its own operators are shown, and none is swapped in."
        )
    try:
        huggingface.attention_layers(subject.model)
    except NotImplementedError as reason:
        return f"Nothing was swapped in: {reason}."
    if operator_for(subject.causal) is None:
        return (
            "Nothing was swapped in: this model hides the future, and a balanced column sums over "
            "it. An operator that balances without looking ahead, causal_elastic, is to come."
        )
    return None


def _choose(measured: Measured, heads: Sequence[Head]) -> list[Head]:
    layers, width = measured.peak.shape
    for layer, head in heads:
        if not (0 <= layer < layers and 0 <= head < width):
            raise ValueError(
                f"inspect: there is no head {layer}.{head}; layers go from 0 to {layers - 1}, "
                f"heads from 0 to {width - 1}"
            )
    if heads:
        return list(heads)
    order = measured.peak.flatten().argsort(descending=True)[:SHOWN].tolist()
    return [(place // width, place % width) for place in order]


def _numbers(
    subject: Subject,
    measured: Measured,
    effects: dict[float, dict[str, float]],
    tolerance: Tensor | None,
    refusal: str | None,
) -> dict[str, Any]:
    """All that was measured, for scripts."""
    return {
        "model": subject.name,
        "causal": subject.causal,
        "samples": len(subject.samples),
        "entropy": measured.entropy.tolist(),
        "fullest_key_load": measured.peak.tolist(),
        "fullest_key": measured.fullest,
        "sink_rate": measured.sinks.tolist(),
        "effective_rank": measured.rank.tolist(),
        "mean_cosine": measured.cosine.tolist(),
        "swap_all": {f"{lam:g}": effect for lam, effect in effects.items()},
        "swap_each_head": None if tolerance is None else tolerance.tolist(),
        "not_swapped": refusal,
    }
