"""The error of Monarch attention over its work, for layouts of pictures and of video."""

import math

import torch
from making.drawing import decorate, put_table, save
from matplotlib.figure import Figure
from torch import Tensor

import bistoch
from bistoch.functional.monarch.layout import Cut
from bistoch.lab.drawing import PALETTE, QUIET
from bistoch.lab.reproduce.cheap_attention import monarch_work, softmax_work

PICTURE, VIDEO = (16, 16), (4, 8, 16)
TILES = ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4))


def grid_tokens(grid: tuple[int, ...], noise: float = 0.3) -> tuple[Tensor, Tensor]:
    """Queries and keys that like their own place on a grid, with noise."""
    parts = []
    for axis, size in enumerate(grid):
        phase = torch.arange(size, dtype=torch.float64)[:, None] * math.pi
        phase = phase * torch.arange(1, 9) / 16
        wave = torch.cat([phase.sin(), phase.cos()], -1)
        shape = [size if other == axis else 1 for other in range(len(grid))]
        parts.append(wave.reshape(*shape, 16).expand(*grid, 16))
    place = torch.cat(parts, -1).flatten(0, -2)
    generator = torch.Generator().manual_seed(0)
    more = torch.randn(2, *place.shape, generator=generator, dtype=torch.float64)
    query, key = 1.2 * (place + noise * more)
    return query, key


def measure(query: Tensor, key: Tensor, updates: int, cut: Cut) -> tuple[float, float]:
    """Work over softmax, and the error of the plan relative to it."""
    n, softmax = len(query), bistoch.softmax_plan(query, key)
    block = cut.block[0] if cut.grid is None else cut.block
    plan = bistoch.monarch_plan(
        query, key, iters=updates, block=block, grid=cut.grid, tiles=cut.tiles
    )
    work = monarch_work(n, 64, updates, cut) / softmax_work(n, 64)
    return work, ((plan - softmax).norm() / softmax.norm()).item()


def layouts() -> None:
    """One panel for a picture, one for video: updates, layouts, tiles."""
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    rows = []
    chosen = {
        "a picture of 16 x 16": (PICTURE, {"rows": (1, 16), "columns": (16, 1), "squares": (4, 4)}),
        "video of 4 x 8 x 16": (VIDEO, {
            "rows": (1, 1, 16), "frames": (1, 8, 16), "columns": (1, 8, 1), "places": (4, 1, 1),
            "rows over time": (4, 1, 16), "columns over time": (4, 8, 1)}),
    }  # fmt: skip
    colours = (*PALETTE[:3], PALETTE[3], PALETTE[4], PALETTE[5])
    for axes, (title, (grid, blocks)) in zip(figure.subplots(1, 2), chosen.items(), strict=True):
        tokens = grid_tokens(grid)
        for colour, (name, block) in zip(colours, blocks.items(), strict=False):
            line = [measure(*tokens, t, Cut(block, grid=grid)) for t in (1, 2, 3)]
            axes.plot(
                *zip(*line, strict=True), color=colour, marker="o", markersize=3.5, label=name
            )
            rows.append([title, name, str(block), *(f"{one[1]:.2f}" for one in line)])
        wrong = math.isqrt(math.prod(grid)) + 1
        line = [measure(*tokens, t, Cut((wrong,))) for t in (1, 2, 3)]
        label = f"runs of {wrong}"
        axes.plot(*zip(*line, strict=True), color=QUIET, marker="x", markersize=4, label=label)
        rows.append([title, label, str(wrong), *(f"{one[1]:.2f}" for one in line)])
        first = next(iter(blocks.values()))
        line = [measure(*tokens, 2, Cut(first, grid=grid, tiles=tiles)) for tiles in TILES]
        axes.plot(*zip(*line, strict=True), color=PALETTE[6], linestyle="--", marker="s",
                  markersize=3, label="rows in tiles")  # fmt: skip
        decorate(axes, title, "multiply-adds over softmax", "error of the plan")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, frameon=False)
    save(figure, "monarch_layouts")
    head = ("tokens", "blocks", "block", "1 update", "2 updates", "3 updates")
    put_table("operators/monarch.md", "monarch_layouts", head, rows)
