"""The report on a model: tables on the terminal, and a page with everything."""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from torch import Tensor

from bistoch.analysis import influence_warning, metrics
from bistoch.analysis.plot import COLOURS, draw_plans
from bistoch.lab.compare.attention import learned_lam
from bistoch.lab.compare.draw import draw_lam
from bistoch.lab.drawing import INK, PALETTE, RULE, grid, legend, sheet, tidy
from bistoch.lab.inspect.measure import Measured
from bistoch.lab.inspect.overloaded import Overloaded
from bistoch.lab.inspect.subject import Subject
from bistoch.lab.machine import provenance
from bistoch.lab.report import Report, Table

# samples that are listed
SAMPLES = 12


class Inspection(NamedTuple):
    """All that was found about a model.

    `effects` are the changes by lam with all heads swapped, `each` the cosine with each head
    swapped alone, `heads` the plans of the shown heads before and after, the most overloaded first;
    `not_swapped` says why nothing was swapped in. `score` is that of the model as it is.
    `influence` and `balanced` are by the names of modules: how much it matters where a layer
    attends, and the layers whose columns an operator makes even.
    """

    subject: Subject
    measured: Measured
    command: str
    heads: Sequence[Overloaded] = ()
    effects: Mapping[float, Mapping[str, float]] = {}
    each: Tensor | None = None
    not_swapped: str | None = None
    score: Mapping[str, float] = {}
    influence: Mapping[str, float] = {}
    balanced: Sequence[str] = ()


def write_report(found: Inspection, out: Path, console: Console) -> Path:
    """Print the summary, and write the page and its record; the path of the page."""
    subject, measured = found.subject, found.measured
    title = f"Attention heads of {'/'.join(Path(subject.name).parts[-2:])}"
    report = Report(title, found.command, console)
    first, *others = found.heads
    _open_with(report, first, subject, "overloaded", most=True)
    if others and others[0].revealed > first.revealed:
        _open_with(report, others.pop(0), subject, "revealed")
    report.text(_intro(subject), printed=True)
    for note in subject.notes:
        report.text(note)
    if sentence := influence_warning(found.influence, found.balanced):
        report.text(sentence, printed=True)
    if others:
        names = ", ".join(f"{one.layer}.{one.head}" for one in others)
        with report.folded(f"More heads (layer.head): {names}"):
            for one in others:
                report.text(one.sentence())
                draw = functools.partial(draw_head, one, subject)
                report.figure(draw, _caption(one), narrow=functools.partial(draw, across=1))
    report.heading("Heads")
    report.text(
        "Entropy is how widely a query attends, from 0 (one key) to 1 (all alike). Load is what a "
        "key receives relative to its even share. A sink is a key with a mean attention above "
        f'{metrics.SINK}; "sinks" is the share of heads and samples that have one.'
    )
    report.figure(
        functools.partial(draw_heads, found), "Every head: rows are layers, columns are heads.",
        narrow=functools.partial(draw_heads, found, across=1),
    )  # fmt: skip
    report.table(*_layer_table(found), printed=True)
    report.heading("Balance without training")
    if found.not_swapped is not None:
        report.text(found.not_swapped, printed=True)
    elif found.effects:
        _add_swap(report, found)
    _add_lam(report, subject)
    report.heading("Depth")
    report.figure(
        functools.partial(draw_depth, measured),
        "States by layer: a falling rank means that tokens grow alike.",
        narrow=functools.partial(draw_depth, measured, across=1),
    )
    report.heading("Model and samples")
    report.table(("option", "value"), [(k, str(v)) for k, v in subject.options.items()])
    rows = [(number, text[:160]) for number, text in enumerate(subject.samples[:SAMPLES], 1)]
    with report.folded(f"{len(rows)} of {len(subject.samples)} samples"):
        report.table(("number", "sample"), rows)
    return report.write(out / "report.html", record=_record(found))


def _open_with(
    report: Report, one: Overloaded, subject: Subject, name: str, *, most: bool = False
) -> None:
    draw = functools.partial(draw_head, one, subject)
    narrow = functools.partial(draw, across=1)
    report.finding(one.sentence(most=most), draw, _caption(one), name, narrow=narrow)


def draw_head(one: Overloaded, subject: Subject, *, across: int = 2) -> Any:
    """A head before and after balance, with names of tokens and bars of column sums."""
    plans = {f"layer {one.layer} head {one.head}": one.before}
    if one.after is not None:
        plans[f"with lam = {one.lam:g}"] = one.after
    n, m = one.before.shape
    keys, queries = subject.key_names(one.sample, m), subject.key_names(one.sample, n)
    return draw_plans(plans, queries=queries, keys=keys, across=across)


def _caption(one: Overloaded) -> str:
    balance = "" if one.after is None else ", and then with balance in this head alone"
    return (
        f"Layer {one.layer}, head {one.head} on sample {one.sample + 1}, as it is{balance}. Rows "
        "are queries, columns are keys; bars are column sums, and the dashed line is the same for "
        "all keys."
    )


def _add_lam(report: Report, subject: Subject) -> None:
    """What a model has learned of lam, if anything."""
    lams = list(learned_lam(subject.model).values())
    if not lams or len({len(row) for row in lams}) > 1:
        return
    report.heading("Learned lam")
    report.figure(
        lambda: draw_lam({"lam": np.array([lams])}, first=0),
        "The elasticity of every head: 0 is softmax, 1 is fully balanced.", "lam",
    )  # fmt: skip


def _add_swap(report: Report, found: Inspection) -> None:
    report.text(
        "The elastic operator in place of softmax, with all weights as they are. A cosine of 1 "
        "means that the embedding (the mean of the last states) did not change its direction."
    )
    report.table(*_swap_table(found), printed=True)
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
    for layer, name in enumerate(measured.names):
        worst = int(measured.peak[layer].nan_to_num(0).argmax())
        row = [
            str(layer) if name == str(layer) else f"{layer}: {name}",
            f"{measured.entropy[layer].nanmean():.2f}", f"{measured.sinks[layer].nanmean():.2f}",
            f"{measured.peak[layer, worst]:.1f}", str(worst), measured.fullest[layer][worst],
        ]  # fmt: skip
        rows.append(row if each is None else [*row, f"{each[layer].nan_to_num(1).min():.4f}"])
    head += [] if each is None else ["lowest cosine, one head swapped"]
    return Table(head, rows, "By layer, over all heads.")


def _swap_table(found: Inspection) -> Table:
    """One row per elasticity of all heads, the model as it is first."""
    titles = {"cosine": "cosine, mean", "lowest": "cosine, lowest"}
    names = list(next(iter(found.effects.values())))
    as_is = {"cosine": 1.0, "lowest": 1.0, **found.score}
    rows = [
        [lam, *(f"{effect[name]:.4f}" for name in names)]
        for lam, effect in (
            ("as it is", as_is), *((f"{lam:g}", one) for lam, one in found.effects.items())
        )
    ]  # fmt: skip
    head = ["lam", *(titles.get(name, name) for name in names)]
    return Table(head, rows, "Balance in all heads at once.")


def _intro(subject: Subject) -> str:
    parameters = sum(p.numel() for p in subject.model.parameters())
    many = "sample" if len(subject.samples) == 1 else "samples"
    causal = "; it is causal, and its columns are compared with those of uniform causal attention"
    return (
        f"{subject.name} ({subject.about}, {parameters:,} parameters) on "
        f"{len(subject.samples)} {many}{causal if subject.causal else ''}."
    )


def _record(found: Inspection) -> dict[str, Any]:
    """All that was measured, as JSON."""
    subject, measured = found.subject, found.measured
    record = {
        "model": subject.name,
        "options": dict(subject.options),
        "causal": subject.causal,
        "samples": len(subject.samples),
        "layers": measured.names,
        "overloaded": [one.record() for one in found.heads],
        "entropy": measured.entropy.tolist(),
        "largest_key_load": measured.peak.tolist(),
        "largest_key": measured.fullest,
        "sink_rate": measured.sinks.tolist(),
        "effective_rank": measured.rank.tolist(),
        "mean_cosine": measured.cosine.tolist(),
        "lam": learned_lam(subject.model),
        "influence": dict(found.influence),
        "balanced": list(found.balanced),
        "score": dict(found.score),
        "swap_all": {f"{lam:g}": effect for lam, effect in found.effects.items()},
        "swap_each_head": None if found.each is None else found.each.tolist(),
        "not_swapped": found.not_swapped,
    }
    return provenance(found.command) | _without_nan(record)


def _without_nan(value: Any) -> Any:
    """None instead of NaN, which JSON does not have: heads that a layer lacks.

    >>> _without_nan({"a": [0.5, float("nan")]})
    {'a': [0.5, None]}
    """
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def draw_heads(found: Inspection, *, across: int = 3) -> Any:
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
    figure, row = grid(len(panels), across, width=4.0, height=max(2.2, 0.34 * layers + 1.3))
    for axes, (title, table, colours, limits) in zip(row, panels, strict=True):
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


def draw_depth(measured: Measured, *, across: int = 2) -> Any:
    """The effective rank of the states and the mean cosine between tokens, by layer."""
    figure, axes = grid(2, across, width=4.4)
    panels = (
        ("effective rank, relative to the largest", measured.rank),
        ("mean cosine between tokens", measured.cosine),
    )
    for panel, colour, (title, values) in zip(axes, PALETTE, panels, strict=False):
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
