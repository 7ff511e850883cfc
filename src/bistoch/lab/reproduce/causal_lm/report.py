"""What the study found: verdicts, tables, a picture and a page."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from bistoch.lab.drawing import INK, PALETTE, QUIET, sheet, tidy
from bistoch.lab.report import Report
from bistoch.lab.reproduce.causal_lm.summary import (
    Found,
    base_of,
    bits_at,
    judge,
    lam_table,
    lines_of,
    look_table,
    oracle_table,
    paired,
    score_table,
)
from bistoch.lab.reproduce.telling import SMOKE, add_picture, finish, tell_verdicts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTION = (
    "Bits per character of the test split, mean and spread over seeds; less softmax: the same seed "
    "with softmax taken away, mean and spread. Learned places end at the length of training."
)
LOOKS = (
    "Means over layers, heads, windows and seeds. Sink rate: plans in which a key of the first "
    "half receives over 0.3 of the attention of those who see it; first token: its mean weight in "
    "a row; overload: what a key received over its share of uniform causal attention, the largest, "
    "also in the first half alone; deviation: the mean distance of the overload from one; "
    "kurtosis: of the states after every block, 3 for a Gaussian."
)


ORACLE = (
    "The heads of the first model with softmax on one window of the test split, and what balance "
    "would make of their scores, without training. The oracle balances every prefix "
    "exactly, at n^3; to the oracle: mean L1 distance of rows."
)


def write_report(found: Found, folder: Path, console: Console) -> Path:
    """Print tables and verdicts, and write the picture and the page; the path of the page."""
    plan, (short, long) = found["plan"], found["plan"]["tested"]
    report = Report("Causal balance in a language model", found["command"])
    recipe = plan["recipe"]
    report.text(
        f"Models of the next character of {plan['data']}: {plan['depth']} blocks, {plan['dim']} "
        f"features, {plan['heads']} heads, rotary places unless said otherwise, "
        f"{found['rows'][0]['steps']} steps of {recipe['batch_size']} windows of {short} characters; "
        f"causal balance in blocks of {plan['block']}. For one seed all lines start from the same "
        "weights and see the same windows in the same order. The controls are softmax with a bias "
        "of the size of that of lam 1: its mean per distance, that of another text of the batch, "
        "or its own, through which no gradient runs. The streamed ratio is the plain log of fair "
        "share over mass received."
    )
    _print(console, *score_table(found))
    _print(console, *look_table(found, short))
    tell_verdicts(console, report, judge(found))
    if found["smoke"]:
        console.print(SMOKE)
        report.text(SMOKE)
    report.heading("Bits")
    report.table(*score_table(found), caption=CAPTION)
    caption = f"Bits less those of softmax, a dot per seed: windows of {short} and of {long}."
    picture = functools.partial(draw, found)
    add_picture(report, picture, caption, folder / "causal_lm.png", console)
    for length in (short, long):
        report.heading(f"Attention in windows of {length}")
        report.table(*look_table(found, length), caption=LOOKS)
    report.heading("Beside the oracle")
    report.table(*oracle_table(found), caption=ORACLE)
    report.heading("Elasticity that was learned")
    report.table(*lam_table(found))
    return finish(report, folder, console)


def draw(found: Found) -> "Figure":
    """Differences to softmax by line, one panel for each length."""
    names = [name for name in lines_of(found) if name != base_of(name)][::-1]
    lengths = found["plan"]["tested"]
    figure, axes = sheet(1, len(lengths), width=4.2, height=0.9 + 0.26 * len(names), sharey=True)
    for panel, length in zip(axes[0], lengths, strict=True):
        panel.axvline(0, color=INK, linewidth=0.8)
        for place, name in enumerate(names):
            less = paired(found, name, base_of(name), bits_at(length))
            if less is not None:
                is_control = "control" in name or "distance" in name or "another" in name
                colour = QUIET if is_control else PALETTE[0]
                panel.scatter(less.each, [place] * len(less.each), s=20, color=colour, alpha=0.6,
                              linewidths=0)  # fmt: skip
                panel.scatter([less.mean], [place], s=90, marker="|", color=colour)
        panel.set_yticks(range(len(names)), names)
        tidy(panel, f"windows of {length}", "bits per character less those of softmax")
    return figure


def _print(console: Console, head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(head):
        table.add_column(name, justify="right" if place else "left", no_wrap=not place)
    for line in lines:
        table.add_row(*line)
    console.print(table)
