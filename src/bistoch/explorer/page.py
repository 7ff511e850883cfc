"""The page: what stands on it, before anything is computed."""

import base64
import io
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from bistoch.explorer.state import EPS, ITERS, State
from bistoch.explorer.subject import Subject, sliders_of
from bistoch.explorer.text import EXAMPLES
from bistoch.explorer.vit import VitSubject

WHERE_WORDS = {"head": "this head", "layer": "this layer", "model": "whole model"}
# plots answer to a pointer over them, and need no buttons of their own
PLOT: Any = {"displayModeBar": False, "responsive": True}
# nothing, until there is something to draw; plotly alone would draw axes
EMPTY = {
    "layout": {
        "xaxis": {"visible": False}, "yaxis": {"visible": False},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
    }
}  # fmt: skip


def shell() -> Any:
    """What is there before the state of the link is known."""
    from dash import dcc, html

    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="link"),
            dcc.Store(id="export"),
            html.Div(html.P("Loading the model…", className="note"), id="page"),
        ]
    )


def page(subjects: Mapping[str, Subject], state: State, problems: Sequence[str]) -> Any:
    """The whole page in a state."""
    from dash import dcc, html

    models = [{"label": subject.title, "value": name} for name, subject in subjects.items()]
    return [
        dcc.Store(id="theme"),
        dcc.Store(id="page-id", data=str(uuid.uuid4())),
        html.Header(
            [
                html.H1("bistoch explore"),
                html.P(id="finding", className="finding", **_aria("live", "polite")),
                html.Ul([html.Li(text) for text in problems], id="link-problems", role="alert"),
                html.Div(id="problem", role="alert"),
            ]
        ),
        html.Main(
            [
                html.Section(
                    [
                        _field("Model", dcc.RadioItems(models, state.model, id="model")),
                        _inputs(subjects, state),
                        html.Div(controls(subjects[state.model], state), id="controls"),
                    ],
                    className="controls",
                    **_aria("label", "Settings"),
                ),
                html.Section(_plots(), className="plots", **_aria("label", "Plots")),
            ]
        ),
    ]


def controls(subject: Subject, state: State) -> list[Any]:
    """The settings of a model but its input, whose field stays while the model changes."""
    from dash import dcc, html

    where = [{"label": text, "value": name} for name, text in WHERE_WORDS.items()]
    return [
        dcc.Store(id="subject", data=subject.name),
        html.Div(
            [
                _slider("layer", "", state.layer, 0, len(subject.heads) - 1, 1),
                _slider("head", "", state.head, 0, max(subject.heads) - 1, 1),
            ],
            className="pair",
        ),
        _field(
            "Operator",
            dcc.Dropdown(
                subject.operators, state.operator, id="operator", clearable=False, searchable=False
            ),
        ),
        _field("Put it into", dcc.RadioItems(where, state.where, id="where", inline=True)),
        html.Div(
            [
                _slider("lam", ", elasticity", state.lam, 0, 1, 0.01),
                # a slider of the exponent: as many steps from 0.01 to 0.1 as from 1 to 10
                _slider("eps", ", temperature", math.log10(state.eps),
                        math.log10(EPS[0]), math.log10(EPS[1]), 0.05),
                _slider("iters", ", iterations", state.iters, *ITERS, 1),
            ],
            className="sliders",
        ),
    ]  # fmt: skip


def picture_options(subjects: Mapping[str, Subject], picture: str) -> list[dict[str, Any]]:
    """The pictures to choose from, the user's own at the end."""
    from dash import html

    subject = next((one for one in subjects.values() if isinstance(one, VitSubject)), None)
    if subject is None:
        return []
    own = None if picture.isdecimal() else picture
    words = [str(number) for number in range(len(subject.pictures))]
    names = [*subject.classes, "your picture"]
    return [
        {
            "label": html.Img(src=_as_url(subject.pixels(word)), alt=name, title=name),
            "value": word,
        }
        for word, name in zip([*words, *([own] if own else [])], names, strict=False)
    ]


def disabled_sliders(operator: str) -> list[bool]:
    """For lam, eps and iters, whether an operator has no such option."""
    return [name not in sliders_of(operator) for name in ("lam", "eps", "iters")]


def _inputs(subjects: Mapping[str, Subject], state: State) -> Any:
    """Where a text or a picture is chosen; what the model does not take is there, but hidden."""
    from dash import dcc, html

    takes_text = subjects[state.model].takes == "text"
    text = _field(
        "Text",
        dcc.Input(id="text", type="text", value=state.text, debounce=0.6, maxLength=2000,
                  autoComplete="off", spellCheck=False),
        html.Div(
            [html.Button(text, id={"example": i}, type="button", className="example")
             for i, text in enumerate(EXAMPLES)],
            className="examples",
        ),
    )  # fmt: skip
    options = picture_options(subjects, state.picture)
    picture = _field(
        "Picture",
        dcc.RadioItems(options, state.picture, id="picture", className="pictures", inline=True),
        dcc.Upload(
            html.Button("Use a picture of your own…", type="button"),
            id="upload", accept="image/*", className="upload", style_active={}, style_reject={},
        ),
        html.P("It stays on this machine, and is cut and scaled to 28 by 28 grey pixels.",
               className="note"),
    )  # fmt: skip
    return html.Div(
        [
            html.Div(text, hidden=not takes_text, id="text-box"),
            html.Div(picture, hidden=takes_text, id="picture-box"),
            html.Div(id="upload-problem", role="alert"),
        ],
        className="inputs",
    )


def _plots() -> list[Any]:
    from dash import html

    def plan(name: str, title: str) -> Any:
        return html.Figure(
            [
                html.Figcaption([html.B(title, id=f"{name}-title"), _numbers(name)]),
                _graph(f"{name}-plan", "plan"),
                html.Div(
                    _graph(f"{name}-picture", "picture"),
                    id=f"{name}-picture-box",
                    hidden=True,
                    title="what each patch receives, laid over the picture",
                ),
            ],
            className=f"side {name}",
        )

    def card(title: str, note: str, graph: str) -> Any:
        return html.Figure(
            [
                html.Figcaption([html.B(title), html.Span(id=note, className="note")]),
                _graph(graph, "card"),
            ]
        )

    return [
        html.Div([plan("before", "softmax"), plan("after", "")], className="plans"),
        html.P(
            "Rows are queries, columns are keys, and the bars are column sums: what each key "
            "receives from all queries. The dotted line is an even share.",
            className="note",
        ),
        html.Div(
            [
                card("Output of the model", "output-note", "output"),
                card("Largest column sum of every head, softmax", "heads-note", "heads"),
            ],
            className="cards",
        ),
        html.Div(
            [
                html.Button("Copy link", id="copy-link", type="button"),
                html.Button("Save PNG", id="save-png", type="button"),
                html.Button("Copy Python", id="copy-python", type="button"),
                html.Span(id="done", role="status", className="note"),
            ],
            className="actions",
        ),
        html.Details([html.Summary("Python that computes this"), html.Pre(id="python")], open=True),
    ]


def _graph(name: str, size: str) -> Any:
    from dash import dcc

    style = {"height": f"var(--{size}-height)"}
    return dcc.Graph(id=name, figure=EMPTY, config=PLOT, style=style)


def _numbers(name: str) -> Any:
    from dash import html

    return html.Span(
        [
            "largest column sum ", html.Output(id=f"{name}-peak"),
            ", entropy ", html.Output(id=f"{name}-entropy"),
        ],
        className="numbers",
    )  # fmt: skip


def _aria(name: str, value: str) -> Any:
    return {f"aria-{name}": value}


def _field(title: str, *children: Any) -> Any:
    from dash import html

    return html.Fieldset([html.Legend(title), *children])


def _slider(name: str, more: str, value: float, least: float, most: float, step: float) -> Any:
    """A native slider: keyboards, fingers and screen readers know it."""
    from dash import dcc, html

    return html.Div(
        [
            html.Label(
                [
                    html.Span([name, html.Span(more, className="more")]),
                    html.Output(id=f"{name}-shown"),
                ],
                htmlFor=name,
            ),
            dcc.Input(id=name, type="range", value=value, min=least, max=most, step=step),
        ],
        className="slider",
    )


def _as_url(pixels: Any) -> str:
    """A picture as part of the page, so that no file is served."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
