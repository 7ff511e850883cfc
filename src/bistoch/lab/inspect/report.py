"""The report on a model: tables on the terminal, and a page with everything."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from torch import Tensor

from bistoch.analysis import metrics
from bistoch.analysis.plot import COLOURS, draw_plans
from bistoch.lab.drawing import INK, PALETTE, RULE, legend, sheet, tidy
from bistoch.lab.inspect.load import Subject
from bistoch.lab.inspect.measure import Measured
from bistoch.lab.report import Report, Table

Head = tuple[int, int]
# samples and tokens that are listed
SAMPLES, TOKENS = 12, 48


class Inspection(NamedTuple):
    """All that was found about a model.

    `effects` are the changes by lam with all heads swapped, `each` the cosine with each head
    swapped alone, `balanced` the plans of the shown heads after the swap; `not_swapped` says why
    there are none.
    """

    subject: Subject
    measured: Measured
    shown: Sequence[Head]
    command: str
    effects: Mapping[float, Mapping[str, float]] = {}
    each: Tensor | None = None
    balanced: Mapping[Head, Tensor] = {}
    not_swapped: str | None = None


def write_report(found: Inspection, out: Path, console: Console) -> Path:
    """Print the summary, and write the page and its record; the path of the page."""
    subject, measured = found.subject, found.measured
    title = f"Attention heads of {'/'.join(Path(subject.name).parts[-2:])}"
    report = Report(title, found.command, console)
    report.text(_intro(subject), printed=True)
    for note in subject.notes:
        report.text(note)
    report.heading("Heads")
    report.text(
        "Entropy is how widely a query attends, from 0 (one key) to 1 (all alike). Load is what a "
        "key receives relative to its even share. A sink is a key with a mean attention above "
        f'{metrics.SINK}; "sinks" is the share of heads and samples that have one.'
    )
    report.figure(draw_heads(found), "Every head: rows are layers, columns are heads.")
    report.table(*_layer_table(found), printed=True)
    report.heading("Depth")
    report.figure(
        draw_depth(measured), "States by layer: a falling rank means that tokens grow alike."
    )
    report.heading("Balance without training")
    if found.not_swapped is not None:
        report.text(found.not_swapped, printed=True)
    elif found.effects:
        _add_swap(report, found)
    report.heading("Plans of some heads")
    report.text(f"On the first sample: {subject.samples[0][:200]}")
    for layer, head in found.shown:
        plans = {f"layer {layer} head {head}": measured.plans[layer][head]}
        if (layer, head) in found.balanced:
            plans[f"lam={max(found.effects):g}"] = found.balanced[layer, head]
        token = measured.fullest[layer][head]
        report.figure(
            draw_plans(plans),
            f"Layer {layer}, head {head}; the key with the largest load is mostly {token}.",
        )
    tokens = subject.tokens[0]
    more = "" if len(tokens) <= TOKENS else f" and {len(tokens) - TOKENS} more"
    report.text(f"Its tokens, from left to right: {'  '.join(tokens[:TOKENS])}{more}")
    report.heading("Samples")
    rows = [(number, text[:160]) for number, text in enumerate(subject.samples[:SAMPLES], 1)]
    report.table(("number", "sample"), rows)
    return report.write(out / "report.html", record=_record(found))


def _add_swap(report: Report, found: Inspection) -> None:
    report.text(
        "The elastic operator in place of softmax, with all weights as they are. A cosine of 1 "
        "means that the embedding (the mean of the last states) did not change its direction."
    )
    report.table(*_swap_table(found.effects), printed=True)
    report.figure(draw_swap(found.effects), "Cosine with the original embedding over lam.")
    if found.each is None:
        return
    width, values = found.each.shape[1], found.each.flatten()
    order = [int(i) for i in values.argsort(descending=True) if not values[i].isnan()]
    some = min(5, len(order) // 2)
    report.table(
        ("layer.head", "cosine"),
        [
            (f"{i // width}.{i % width}", f"{values[i]:.5f}")
            for i in [*order[:some], *order[len(order) - some :]]
        ],
        f"Each head alone at lam = {max(found.effects):g}: those that matter least and most.",
    )


def _layer_table(found: Inspection) -> Table:
    """One row per layer: means over its heads, and the key with the largest load."""
    measured, each = found.measured, found.each
    head = ["layer", "entropy", "sinks", "largest load", "in head", "its token"]
    if each is not None and len(each) != len(measured.peak):
        each = None
    rows = []
    for layer in range(len(measured.peak)):
        worst = int(measured.peak[layer].argmax())
        row = [
            str(layer), f"{measured.entropy[layer].mean():.2f}",
            f"{measured.sinks[layer].mean():.2f}", f"{measured.peak[layer, worst]:.1f}", str(worst),
            measured.fullest[layer][worst],
        ]  # fmt: skip
        rows.append(row if each is None else [*row, f"{each[layer].nan_to_num(1).min():.4f}"])
    head += [] if each is None else ["lowest cosine, one head swapped"]
    return Table(head, rows, "By layer, over all heads.")


def _swap_table(effects: Mapping[float, Mapping[str, float]]) -> Table:
    """One row per elasticity of all heads."""
    names = ["cosine", "lowest", *(["loss"] if "loss" in next(iter(effects.values())) else [])]
    titles = {"cosine": "cosine, mean", "lowest": "cosine, lowest", "loss": "loss"}
    rows = [
        [f"{lam:g}", *(f"{effect[name]:.4f}" for name in names)] for lam, effect in effects.items()
    ]
    return Table(["lam", *(titles[name] for name in names)], rows, "Balance in all heads at once.")


def _intro(subject: Subject) -> str:
    model, config = type(subject.model).__name__, subject.model.config
    parameters = sum(p.numel() for p in subject.model.parameters())
    many = "sample" if len(subject.samples) == 1 else "samples"
    causal = "; it is causal, and its columns are compared with those of uniform causal attention"
    return (
        f"{subject.name} ({model}, {config.model_type}, {parameters:,} parameters) on "
        f"{len(subject.samples)} {many}{causal if subject.causal else ''}."
    )


def _record(found: Inspection) -> dict[str, Any]:
    """All that was measured, as JSON."""
    subject, measured = found.subject, found.measured
    return {
        "model": subject.name,
        "causal": subject.causal,
        "samples": len(subject.samples),
        "entropy": measured.entropy.tolist(),
        "largest_key_load": measured.peak.tolist(),
        "largest_key": measured.fullest,
        "sink_rate": measured.sinks.tolist(),
        "effective_rank": measured.rank.tolist(),
        "mean_cosine": measured.cosine.tolist(),
        "swap_all": {f"{lam:g}": effect for lam, effect in found.effects.items()},
        "swap_each_head": None if found.each is None else found.each.tolist(),
        "not_swapped": found.not_swapped,
    }


def draw_heads(found: Inspection) -> Any:
    """Layers by heads: entropy, the largest key load, and the cosine when a head is swapped."""
    measured = found.measured
    # dark is what matters: low entropy, large loads, heads whose swap changes much
    panels: list[tuple[str, Tensor, str, dict[str, float]]] = [
        ("entropy of rows (1 = uniform)", measured.entropy, f"{COLOURS}_r",
         {"vmin": 0.0, "vmax": 1.0}),
        ("largest load of a key (1 = even)", measured.peak, COLOURS, {"vmin": 1.0}),
    ]  # fmt: skip
    if found.each is not None:
        panels.append(("cosine when swapped alone", found.each, f"{COLOURS}_r", {"vmax": 1.0}))
    layers, heads = measured.entropy.shape
    figure, row = sheet(1, len(panels), width=4.0, height=max(2.2, 0.34 * layers + 1.3))
    for axes, (title, table, colours, limits) in zip(row[0], panels, strict=True):
        image = axes.imshow(table.numpy(), cmap=colours, aspect="auto", **limits)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.set_xlabel("head", fontsize=9, color=INK)
        axes.set_ylabel("layer", fontsize=9, color=INK)
        axes.set_xticks(range(0, table.shape[1], max(1, heads // 12)))
        axes.set_yticks(range(0, table.shape[0], max(1, layers // 12)))
        axes.tick_params(labelsize=8, length=2, color=RULE, labelcolor=INK)
        bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.03)
        bar.ax.tick_params(labelsize=8, length=2, color=RULE)
    return figure


def draw_depth(measured: Measured) -> Any:
    """The effective rank of the states and the mean cosine between tokens, by layer."""
    figure, axes = sheet(1, 2, width=4.4)
    panels = (
        ("effective rank, relative to the largest", measured.rank),
        ("mean cosine between tokens", measured.cosine),
    )
    for panel, colour, (title, values) in zip(axes[0], PALETTE, panels, strict=False):
        depth = len(values)
        panel.plot(range(depth), values.numpy(), color=colour, marker="o", markersize=3.5)
        panel.set_ylim(min(0.0, float(values.min()) * 1.1), 1.02)
        panel.set_xticks(range(0, depth, max(1, depth // 12)))
        tidy(panel, title, "after layer (0 = embeddings)")
    return figure


def draw_swap(effects: Mapping[float, Mapping[str, float]]) -> Any:
    """The cosine with the original embedding over the elasticity of all heads."""
    figure, axes = sheet(1, 1, width=4.6)
    panel, lams = axes[0][0], list(effects)
    curves = {"mean over samples": "cosine", "lowest": "lowest"}
    for colour, (label, name) in zip(PALETTE, curves.items(), strict=False):
        values = [effects[lam][name] for lam in lams]
        panel.plot(lams, values, color=colour, marker="o", markersize=4, label=label)
    tidy(panel, "", "lam of all heads", "cosine with the original")
    legend(panel)
    return figure
