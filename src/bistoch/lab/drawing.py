"""How pictures of this room look: an empty sheet, the colours, and a panel's words and frame."""

import io
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, GRID, QUIET, RULE = "#222222", "#e4e4e4", "#8a8a8a", "#b8b8b8"
# the palette of Okabe and Ito, which colour-blind eyes can tell apart
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def import_figure() -> Any:
    """The class of figures, or one sentence about how to get it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            'drawing a picture needs matplotlib; install it with: pip install "bistoch[plot]"'
        ) from None
    return Figure


def sheet(
    rows: int, columns: int, *, width: float = 3.5, height: float = 2.9, **shared: Any
) -> Any:
    """An empty figure and its panels, each of this size in inches.

    >>> figure, axes = sheet(1, 2)
    >>> axes.shape
    (1, 2)
    """
    figure = import_figure()(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def row(count: int, **size: Any) -> Any:
    """An empty figure of panels side by side, and these panels."""
    figure, axes = sheet(1, count, **size)
    return figure, axes[0]


def grid(count: int, across: int, **size: Any) -> Any:
    """An empty figure of panels, at most so many side by side, and these panels in order.

    >>> figure, panels = grid(3, 2)
    >>> len(panels)
    3
    """
    across = min(count, across)
    figure, axes = sheet(-(-count // across), across, **size)
    for empty in axes.flat[count:]:
        empty.remove()
    return figure, list(axes.flat[:count])


def tidy(axes: Any, title: str = "", xlabel: str = "", ylabel: str = "") -> None:
    """Give a panel its words and a quiet frame."""
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, length=2, color=RULE, labelcolor=INK, which="both")
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(RULE)


def legend(axes: Any) -> None:
    """A legend without a frame."""
    axes.legend(fontsize=8, frameon=False, labelcolor=INK)


def legend_beside(figure: Any, axes: Any) -> None:
    """One legend for all panels, to the right of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside right center", frameon=False, fontsize=9, labelcolor=INK
    )


def to_png(figure: "Figure") -> bytes:
    """A picture as the content of a file.

    >>> to_png(sheet(1, 1)[0])[1:4]
    b'PNG'
    """
    return to_content(figure, "png")


def to_content(figure: "Figure", form: str) -> bytes:
    """A picture as the content of a file: png, pdf or svg.

    >>> to_content(sheet(1, 1)[0], "pdf")[:4]
    b'%PDF'
    """
    content = io.BytesIO()
    with warnings.catch_warnings():
        # a token in a script that the font lacks is a box: nothing a reader can change
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(content, format=form, dpi=110, bbox_inches="tight")
    return content.getvalue()
