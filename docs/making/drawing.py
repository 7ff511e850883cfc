"""How a page gets its pictures and its measured tables."""

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

DOCS = Path(__file__).parent.parent
INK, GRID = "#222222", "#e4e4e4"
# the palette of Okabe and Ito, from dark to bright: colour-blind eyes can tell these apart
PALETTE = ("#000000", "#0072b2", "#009e73", "#56b4e9", "#e69f00", "#d55e00", "#cc79a7")


def decorate(axes, title: str, xlabel: str, ylabel: str) -> None:
    """Give a panel its words and a quiet frame."""
    axes.set_title(title, fontsize=10, color=INK)
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, length=2, color="#b8b8b8", labelcolor=INK, which="both")
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b8b8b8")


def save(figure: Figure, name: str) -> None:
    """Write one picture of the docs."""
    # without the version of the drawing library, so that the same picture is the same file
    figure.savefig(DOCS / "figures" / f"{name}.png", dpi=130, metadata={"Software": None})


def put_table(page: str, name: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Replace the table between `<!-- measured: name -->` and `<!-- end -->` in a page."""
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    opening = f"<!-- measured: {name} -->"
    before, rest = text.split(opening, 1)
    after = rest.split("<!-- end -->", 1)[1]
    lines = [heads, ["---"] * len(heads), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    path.write_text(f"{before}{opening}\n\n{table}\n\n<!-- end -->{after}", encoding="utf-8")


def seeded(seed: int) -> torch.Generator:
    """A source of random numbers that is the same in every run."""
    return torch.Generator().manual_seed(seed)
