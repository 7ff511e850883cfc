"""Figures as plotly reads them: plans with their column sums, the picture, the output, the heads.

They are plain dictionaries: building them with the classes of plotly takes many times as long as
running the model. Names of tokens come from the user's text, and plotly reads tags in labels: all
are escaped.
"""

from html import escape
from typing import Any

from jaxtyping import UInt8
from torch import Tensor

from bistoch.explorer.view import Side, View

Figure = dict[str, Any]

# the colours of a plan, from zero to its largest entry
SCALES = {
    "light": [[0, "#ffffff"], [0.1, "#d6e6f4"], [0.4, "#6aaed6"], [0.7, "#2070b4"], [1, "#08306b"]],
    "dark": [[0, "#171a21"], [0.1, "#1d3557"], [0.4, "#2f6fb0"], [0.7, "#7cc0f0"], [1, "#f2f8ff"]],
}
INK = {"light": "#1c2430", "dark": "#e6e9ef"}
GRID = {"light": "#dfe4ea", "dark": "#323945"}
BAR = {"thickness": 8, "outlinewidth": 0, "tickfont": {"size": 10}, "nticks": 5}
PLAIN = {"showgrid": False, "zeroline": False}
BEFORE, AFTER, EVEN = "#d1662a", "#2b7bba", "#8a93a0"


def draw_plan(view: View, *, swapped: bool, theme: str) -> Figure:
    """A plan, its tokens at both axes, with the column sums as bars above it."""
    figure = _figure(theme, margin={"l": 62, "r": 0, "t": 8, "b": 62}, shapes=[])
    _add_plan(figure, view, swapped, theme, "", (0.0, 1.0))
    return figure


def draw_export(view: View, title: str) -> Figure:
    """Both plans beside each other with titles, for a file."""
    headings = (_heading(view.before, "softmax"), 0.22), (_heading(view.after, view.operator), 0.77)
    place = {"y": 1.02, "xref": "paper", "yref": "paper", "xanchor": "center", "yanchor": "bottom",
             "showarrow": False}  # fmt: skip
    figure = _figure(
        "light", width=1200, height=760, paper_bgcolor="#ffffff", plot_bgcolor="#ffffff",
        margin={"l": 80, "r": 20, "t": 110, "b": 80}, shapes=[],
        title={"text": escape(_short(title, 110)), "x": 0.5},
        annotations=[{"text": text, "x": x, **place} for text, x in headings],
    )  # fmt: skip
    _add_plan(figure, view, False, "light", "", (0.0, 0.44))
    _add_plan(figure, view, True, "light", "2", (0.54, 1.0))
    return figure


def draw_output(view: View, theme: str) -> Figure:
    """The output of the model as bars, as it is and with the operator."""
    names = list(view.before.output | view.after.output)[::-1]
    figure = _figure(
        theme, barmode="group", bargap=0.25, showlegend=True,
        margin={"l": 8, "r": 12, "t": 8, "b": 28},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0,
                "traceorder": "reversed"},
        xaxis={"gridcolor": GRID[theme], "zerolinecolor": EVEN}, yaxis={"automargin": True},
    )  # fmt: skip
    sides = (view.after, AFTER, view.operator), (view.before, BEFORE, "softmax")
    figure["data"] = [
        {
            "type": "bar", "orientation": "h", "name": escape(label), "marker": {"color": colour},
            "y": [escape(_short(name, 34)) for name in names],
            "x": [side.output.get(name, 0.0) for name in names],
            "hovertemplate": "%{y}<br>%{x:.4f}<extra></extra>",
        }
        for side, colour, label in sides
    ]  # fmt: skip
    return figure


def draw_heads(view: View, theme: str) -> Figure:
    """The largest column sum of every head of the model as it is; a click chooses a head."""
    state, most = view.state, max(map(len, view.peaks))
    chosen = {
        "type": "rect", "x0": state.head - 0.5, "x1": state.head + 0.5, "y0": state.layer - 0.5,
        "y1": state.layer + 0.5, "line": {"color": BEFORE, "width": 3},
    }  # fmt: skip
    figure = _figure(
        theme, margin={"l": 40, "r": 0, "t": 8, "b": 36}, shapes=[chosen],
        xaxis={"title": {"text": "head"}, "dtick": 1, **PLAIN},
        yaxis={"title": {"text": "layer"}, "dtick": 1, "autorange": "reversed", **PLAIN},
    )  # fmt: skip
    figure["data"] = [
        {
            "type": "heatmap", "z": [[*row, *[None] * (most - len(row))] for row in view.peaks],
            "colorscale": SCALES[theme], "zmin": 1, "zmax": max(map(max, view.peaks)), "xgap": 2,
            "ygap": 2, "hovertemplate": "layer %{y}, head %{x}: %{z:.1f}<extra></extra>",
            "colorbar": BAR,
        }
    ]  # fmt: skip
    return figure


def draw_picture(
    pixels: UInt8[Tensor, "h w"], view: View, grid: tuple[int, int], *, swapped: bool, theme: str
) -> Figure:
    """The picture, with what each of its patches receives from all tokens laid over it."""
    rows, columns = grid
    tall, wide = pixels.shape[0] // rows, pixels.shape[1] // columns
    side = view.after if swapped else view.before
    figure = _figure(
        theme, margin={"l": 4, "r": 0, "t": 4, "b": 4},
        xaxis={"visible": False, "constrain": "domain"},
        yaxis={"visible": False, "autorange": "reversed", "scaleanchor": "x"},
    )  # fmt: skip
    figure["data"] = [
        {
            "type": "heatmap", "z": pixels.tolist(), "colorscale": [[0, "#000"], [1, "#fff"]],
            "zmin": 0, "zmax": 255, "showscale": False, "hoverinfo": "skip",
        },
        {
            "type": "heatmap", "z": side.sums[1:].reshape(rows, columns).tolist(),
            "x0": (wide - 1) / 2, "dx": wide, "y0": (tall - 1) / 2, "dy": tall,
            "colorscale": [[0, "rgba(255,120,20,0)"], [1, "rgba(255,120,20,0.85)"]],
            # one scale for both pictures
            "zmin": 0, "zmax": max(3.0, view.before.peak, view.after.peak), "colorbar": BAR,
            "customdata": [[f"{r + 1}:{c + 1}" for c in range(columns)] for r in range(rows)],
            "hovertemplate": "patch %{customdata}: %{z:.2f}<extra></extra>",
        },
    ]  # fmt: skip
    return figure


def _add_plan(
    figure: Figure, view: View, swapped: bool, theme: str, axis: str, span: tuple[float, float]
) -> None:
    """Add a plan with its bars to a figure, on axes with this number."""
    side = view.after if swapped else view.before
    n = len(view.tokens)
    # names may repeat, so places are numbers and names their labels
    places, names = list(range(n)), [escape(_short(token, 12)) for token in view.tokens]
    step = max(1, -(-n // 26))
    ticks = {"tickvals": places[::step], "ticktext": names[::step], "tickfont": {"size": 10},
             "ticks": "outside", **PLAIN}  # fmt: skip
    # the vertical axis of the bars is another one
    bars = str(int(axis or 1) + 4)
    figure["data"] += [
        {
            "type": "heatmap", "z": side.plan.tolist(), "x": places, "y": places,
            "xaxis": f"x{axis}", "yaxis": f"y{axis}", "colorscale": SCALES[theme], "zmin": 0,
            "zmax": float(side.plan.max()), "customdata": [names] * n,
            "text": [[name] * n for name in names],
            "colorbar": {**BAR, "x": span[1], "y": 0, "yanchor": "bottom", "len": 0.78},
            "hovertemplate": "%{text} → %{customdata}: %{z:.3f}<extra></extra>",
        },
        {
            "type": "bar", "x": places, "y": side.sums.tolist(), "xaxis": f"x{axis}",
            "yaxis": f"y{bars}", "marker": {"color": AFTER if swapped else BEFORE},
            "customdata": names, "showlegend": False,
            "hovertemplate": "%{customdata} receives %{y:.2f}<extra></extra>",
        },
    ]  # fmt: skip
    layout = figure["layout"]
    layout["shapes"].append({
        "type": "line", "x0": -0.5, "x1": n - 0.5, "y0": 1, "y1": 1, "xref": f"x{axis}",
        "yref": f"y{bars}", "line": {"color": EVEN, "width": 1, "dash": "dot"},
    })  # fmt: skip
    layout[f"xaxis{axis}"] = {
        **ticks, "domain": span, "tickangle": -60, "anchor": f"y{axis}", "range": [-0.5, n - 0.5],
    }  # fmt: skip
    layout[f"yaxis{axis}"] = {
        **ticks, "domain": [0, 0.78], "anchor": f"x{axis}", "range": [n - 0.5, -0.5],
    }  # fmt: skip
    top = max(view.before.peak, view.after.peak, 1.0) * 1.08
    layout[f"yaxis{bars}"] = {
        "domain": [0.81, 1], "range": [0, top], "anchor": f"x{axis}", "gridcolor": GRID[theme],
        "nticks": 4, "zeroline": False,
    }  # fmt: skip


def _heading(side: Side, name: str) -> str:
    return (
        f"<b>{escape(name)}</b><br>largest column sum {side.peak:.2f} "
        f"({escape(side.token)}), entropy {side.entropy:.2f}"
    )


def _figure(theme: str, **layout: Any) -> Figure:
    shared = {
        "font": {"color": INK[theme], "size": 12, "family": "system-ui"}, "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "showlegend": False,
        "dragmode": False, "barcornerradius": 2,
    }  # fmt: skip
    return {"data": [], "layout": {**shared, **layout}}


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
