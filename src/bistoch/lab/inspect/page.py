"""What a user sees: a summary in the terminal, and a page with everything."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from bistoch.analysis import metrics
from bistoch.analysis.plot import draw_plans
from bistoch.lab.inspect.draw import draw_depth, draw_heads, draw_swap
from bistoch.lab.inspect.load import Subject
from bistoch.lab.inspect.measure import Measured
from bistoch.lab.report import Report

if TYPE_CHECKING:
    from rich.console import Console

Effects = Mapping[float, Mapping[str, float]]
# samples and tokens that are written out in full
LISTED, SPELLED = 12, 48


def print_summary(
    console: "Console",
    subject: Subject,
    measured: Measured,
    effects: Effects,
    tolerance: Tensor | None,
    refusal: str | None,
) -> None:
    """One line per layer, one line per elasticity."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    console.print(_intro(subject), highlight=False)
    head, rows = layer_rows(measured, tolerance)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(name, justify="left" if name == "its token" else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    if refusal is not None:
        console.print(refusal, highlight=False)
        return
    if effects:
        head, rows = swap_rows(effects)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="balance in all heads, untrained",
                      title_justify="left")  # fmt: skip
        for name in head:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*row)
        console.print(table)


def write_page(
    path: Path,
    subject: Subject,
    measured: Measured,
    effects: Effects,
    tolerance: Tensor | None,
    shown: Sequence[tuple[int, int]],
    balanced: Mapping[tuple[int, int], Tensor],
    refusal: str | None,
    command: str,
) -> Path:
    """The report, in one file that needs nothing from outside."""
    report = Report(f"Inside {'/'.join(Path(subject.name).parts[-2:])}", command)
    report.text(_intro(subject))
    for note in subject.notes:
        report.text(note)
    report.heading("Heads")
    report.text(
        "Entropy is how widely a query looks, from 0 (one key) to 1 (all alike). Load is what a "
        "key receives over its even share. A sink is a key with a mean attention above "
        f'{metrics.SINK}; "sinks" is the share of heads and samples that have one.'
    )
    report.figure(
        draw_heads(measured, tolerance), "Every head: rows are layers, columns are heads."
    )
    report.table(*layer_rows(measured, tolerance), "Layer by layer, over all heads.")
    report.heading("Depth")
    report.figure(draw_depth(measured), "States layer by layer: a falling rank means that tokens "
                  "grow alike.")  # fmt: skip
    report.heading("Balance without training")
    if refusal is not None:
        report.text(refusal)
    elif effects:
        report.text(
            "The elastic operator in place of softmax, with all weights as they are. A cosine of 1 "
            "means that the embedding (the mean of the last states) did not turn at all."
        )
        report.table(*swap_rows(effects), "All heads at once.")
        report.figure(draw_swap(effects), "What is left of the embedding as lam grows.")
        if tolerance is not None:
            report.table(*_tolerant(tolerance), f"Each head alone at lam = {max(effects):g}: those "
                         "that matter least and most.")  # fmt: skip
    report.heading("Plans of some heads")
    report.text(f"On the first sample: {subject.samples[0][:200]}")
    for layer, head in shown:
        plans = {f"layer {layer} head {head}": measured.plans[layer][head]}
        if (layer, head) in balanced:
            plans[f"lam={max(effects):g}"] = balanced[layer, head]
        fullest = measured.fullest[layer][head]
        report.figure(
            draw_plans(plans), f"Layer {layer}, head {head}; its fullest key is mostly {fullest}."
        )
    words = subject.tokens[0]
    more = "" if len(words) <= SPELLED else f" and {len(words) - SPELLED} more"
    report.text(f"Its tokens, from left to right: {'  '.join(words[:SPELLED])}{more}")
    report.heading("Samples")
    rows = [(number, text[:160]) for number, text in enumerate(subject.samples[:LISTED], 1)]
    report.table(("number", "sample"), rows)
    return report.write(path)


def layer_rows(
    measured: Measured, tolerance: Tensor | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One row per layer: means over its heads, and its fullest key."""
    head: tuple[str, ...] = ("layer", "entropy", "sinks", "fullest key", "in head", "its token")
    fits = tolerance is not None and len(tolerance) == len(measured.peak)
    if fits:
        head = (*head, "cosine left, worst head")
    rows = []
    for layer in range(len(measured.peak)):
        worst = int(measured.peak[layer].argmax())
        row: tuple[str, ...] = (
            str(layer),
            f"{measured.entropy[layer].mean():.2f}",
            f"{measured.sinks[layer].mean():.2f}",
            f"{measured.peak[layer, worst]:.1f}",
            str(worst),
            measured.fullest[layer][worst],
        )
        if fits and tolerance is not None:
            row = (*row, f"{tolerance[layer].nan_to_num(1).min():.4f}")
        rows.append(row)
    return head, rows


def swap_rows(effects: Effects) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One row per elasticity of all heads."""
    with_loss = any("loss" in effect for effect in effects.values())
    head = ("lam", "cosine, mean", "cosine, lowest", *(["loss"] if with_loss else []))
    rows: list[tuple[str, ...]] = []
    for lam, effect in effects.items():
        row = (f"{lam:g}", f"{effect['cosine']:.4f}", f"{effect['lowest']:.4f}")
        rows.append((*row, f"{effect['loss']:.4f}") if with_loss else row)
    return head, rows


def _tolerant(tolerance: Tensor) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    width = tolerance.shape[1]
    order = [int(i) for i in tolerance.flatten().nan_to_num(-1).argsort(descending=True)]
    order = [i for i in order if not tolerance.flatten()[i].isnan()]
    some = min(5, len(order) // 2)
    places = [*order[:some], *order[len(order) - some :]]
    rows: list[tuple[str, ...]] = [
        (f"{i // width}.{i % width}", f"{float(tolerance.flatten()[i]):.5f}") for i in places
    ]
    return ("layer.head", "cosine left"), rows


def _intro(subject: Subject) -> str:
    model = type(subject.model).__name__
    config = subject.model.config
    parts = sum(p.numel() for p in subject.model.parameters())
    many = "sample" if len(subject.samples) == 1 else "samples"
    future = "; it hides the future, and its columns are compared with uniform causal attention"
    return (
        f"{subject.name} ({model}, {config.model_type}, {parts:,} parameters) on "
        f"{len(subject.samples)} {many}{future if subject.causal else ''}."
    )
