"""Pictures of a search between halves of pictures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bistoch.lab.drawing import INK, PALETTE, QUIET, import_figure, legend, row, tidy
from bistoch.lab.search.halves import Halves
from bistoch.lab.search.methods import Found

RIGHT, WRONG, GREY = PALETTE[0], PALETTE[1], QUIET
# pixels: of a pixel of a picture, between pictures, and between groups of rows
SCALE, GAP, GROUP = 4, 10, 24
# inches of a sheet with pictures
WIDTH = 9.0
STYLES = {"cosine": ":", "CSLS": "--", "inverted softmax": "-.", "dual softmax": (0, (1, 3))}


def draw_dial(panels: Mapping[str, tuple[Mapping[float, float], Mapping[str, float]]]) -> Any:
    """R@1 over lam, one panel per bank; simple methods are horizontal lines.

    Args:
        panels: by title, the recall by lam and that of the simple methods by name.
    """
    figure, axes_of = row(len(panels), width=4.9, height=3.6, sharey=True)
    for axes, (title, (curve, others)) in zip(axes_of, panels.items(), strict=True):
        lams, values = list(curve), [100 * value for value in curve.values()]
        axes.plot(lams, values, color=RIGHT, marker="o", markersize=4, label="balance, over lam")
        best = values.index(max(values))
        axes.annotate(
            f"{values[best]:.1f}", (lams[best], values[best]), xytext=(0, 6),
            textcoords="offset points", ha="center", fontsize=9, color=RIGHT,
        )  # fmt: skip
        for name, value in others.items():
            axes.axhline(
                100 * value, color=QUIET if name == "cosine" else INK, linestyle=STYLES[name],
                linewidth=1.1, label=f"{name}, {100 * value:.1f}",
            )  # fmt: skip
        tidy(axes, title, "lam", "R@1, per cent" if axes is axes_of[0] else "")
        axes.set_xlim(-0.03, 1.06)
        axes.margins(y=0.12)
        axes.legend(fontsize=8, frameon=False, labelcolor=INK, loc="upper center",
                    bbox_to_anchor=(0.5, -0.17), ncols=2)  # fmt: skip
    return figure


def draw_lists(counts: tuple[np.ndarray, np.ndarray], even: int) -> Any:
    """In how many lists right halves are, sorted, before and after."""
    return draw_counts(counts, ("cosine", "balance lam 0.9"), even, "right halves, sorted")


def draw_counts(
    counts: tuple[np.ndarray, np.ndarray],
    labels: tuple[str, str] = ("before", "after"),
    even: float | None = None,
    what: str = "documents, sorted",
) -> Any:
    """In how many lists documents are, sorted, before and after."""
    figure, (axes,) = row(1, width=7.0, height=2.9)
    for one, colour, label in zip(counts, (WRONG, RIGHT), labels, strict=True):
        axes.plot(np.sort(one)[::-1], color=colour, label=label)
    even = counts[0].mean() if even is None else even
    axes.axhline(even, color=QUIET, linewidth=0.9, linestyle=":", label="the same for all")
    tidy(axes, "", what, "lists that it is in")
    legend(axes)
    return figure


def draw_shelf(
    halves: Halves, places: Sequence[int] | np.ndarray, counts: tuple[np.ndarray, np.ndarray]
) -> Any:
    """Documents side by side, each with the number of its lists before and after."""
    tiles = [[_tile(_half(halves, place, 1), GREY) for place in places]]
    figure, axes, (_, width) = _paste(tiles)
    for column, place in enumerate(places):
        text = f"{counts[0][place]} → {counts[1][place]}"
        middle = (column + 0.5) * width - GAP / 2
        axes.text(middle, -GAP, text, ha="center", va="bottom", fontsize=10, color=INK)
    return figure


def draw_pairs(
    halves: Halves, searches: Sequence[Sequence[int]], before: Found, after: Found
) -> Any:
    """Left halves beside their first results: two rows for each group, before and after."""
    columns, tiles = max(len(group) for group in searches), []
    for group in searches:
        for found in (before, after):
            line = []
            for query in group:
                first = int(found.first[query])
                split = np.full((len(halves.pictures[query]) * SCALE, 2), 255.0)
                parts = (_half(halves, query, 0), split, _half(halves, first, 1))
                line.append(_tile(np.concatenate(parts, 1), RIGHT if first == query else WRONG))
            blank = np.full_like(line[0], 255)
            tiles.append(line + [blank] * (columns - len(line)))
    figure, axes, (height, _) = _paste(tiles, groups=2, left=0.09)
    for place in range(len(tiles)):
        middle = (place + 0.5) * height - GAP / 2 + place // 2 * GROUP
        name = ("cosine", "balance")[place % 2]
        axes.text(-GAP, middle, name, ha="right", va="center", fontsize=10, color=INK)
    return figure


def _half(halves: Halves, place: int, side: int) -> np.ndarray:
    """The left or right half of a picture, enlarged, dark on white."""
    half = 255.0 - np.split(halves.pictures[place], 2, 1)[side]
    return half.repeat(SCALE, 0).repeat(SCALE, 1)


def _tile(picture: np.ndarray, colour: str) -> np.ndarray:
    """A grey picture in a coloured frame, as red, green and blue."""
    from matplotlib.colors import to_rgb

    wide = 1 if colour == GREY else 5
    height, width = picture.shape
    tile = np.empty((height + 2 * wide, width + 2 * wide, 3), np.uint8)
    tile[:] = np.round(255 * np.asarray(to_rgb(colour)))
    tile[wide:-wide, wide:-wide] = picture[..., None]
    return tile


def _paste(
    tiles: Sequence[Sequence[np.ndarray]], groups: int = 1, left: float = 0.0
) -> tuple[Any, Any, tuple[int, int]]:
    """All tiles on one sheet, its panel in pixels, and the distance of neighbours.

    One picture of many tiles is drawn in a fraction of the time of many panels.

    Args:
        tiles: rows of pictures of the same size.
        groups: rows that belong together; more room is left between such groups.
        left: the share of the sheet that is kept free for names of rows.
    """
    height, width = (size + GAP for size in tiles[0][0].shape[:2])
    spare = (len(tiles) - 1) // groups * (GROUP if groups > 1 else 0)
    whole = np.full((height * len(tiles) - GAP + spare, width * len(tiles[0]) - GAP, 3), 255)
    for down, line in enumerate(tiles):
        top = down * height + (down // groups * GROUP if groups > 1 else 0)
        for across, tile in enumerate(line):
            begin = across * width
            whole[top : top + tile.shape[0], begin : begin + tile.shape[1]] = tile
    inches = WIDTH * (1 - left) * whole.shape[0] / whole.shape[1]
    figure = import_figure()(figsize=(WIDTH, inches))
    axes = figure.add_axes((left, 0, 1 - left, 1))
    axes.imshow(whole.astype(np.uint8), interpolation="antialiased")
    axes.axis("off")
    return figure, axes, (height, width)
