"""The app: what happens when a setting changes. All state is in the page; the server keeps none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bistoch.explorer.figures import (
    draw_export,
    draw_heads,
    draw_output,
    draw_picture,
    draw_plan,
)
from bistoch.explorer.link import change, read_link, write_link
from bistoch.explorer.page import (
    EMPTY,
    controls,
    disabled_sliders,
    page,
    picture_options,
    shell,
)
from bistoch.explorer.state import State
from bistoch.explorer.subject import Subject
from bistoch.explorer.text import EXAMPLES
from bistoch.explorer.turns import Turns
from bistoch.explorer.upload import read_upload
from bistoch.explorer.view import View, change_of_output, finding, look, python_lines
from bistoch.explorer.vit import VitSubject

# what a user can set, in the order in which it is read: layers before heads
SETTINGS = ("text", "picture", "layer", "head", "operator", "where", "lam", "eps", "iters")

FOLLOW_THEME = """() => {
    const dark = window.matchMedia('(prefers-color-scheme: dark)');
    const name = () => dark.matches ? 'dark' : 'light';
    dark.onchange = () => dash_clientside.set_props('theme', {data: name()});
    return name();
}"""
SHOW_LINK = """link => {
    if (link) { history.replaceState(history.state, '', link); }
    return dash_clientside.no_update;
}"""
COPY = """async (linked, coded, code) => {
    const coding = dash_clientside.callback_context.triggered_id === 'copy-python';
    const text = coding ? code : window.location.href;
    try { await navigator.clipboard.writeText(text); }
    catch (refused) { return 'The browser does not allow copying; select the text instead.'; }
    return coding ? 'Python copied.' : 'Link copied: it opens this view.';
}"""
SAVE = """async figure => {
    if (!figure) { return dash_clientside.no_update; }
    await Plotly.downloadImage(figure, {
        format: 'png', width: 1200, height: 760, scale: 2, filename: figure.name});
    return 'Picture saved.';
}"""


def make_app(subjects: Mapping[str, Subject]) -> Any:
    """The Dash app for some models, the first of which opens.

    Args:
        subjects: by their names.
    """
    dash = import_dash()
    from dash import ALL, Input, Output, State as Given  # noqa: I001

    app = dash.Dash(
        "bistoch",
        title="bistoch explore",
        update_title="",
        assets_folder=str(Path(__file__).parent / "assets"),
        suppress_callback_exceptions=True,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.layout = shell()
    turns = Turns()
    settings = [Input(name, "value") for name in SETTINGS]

    @app.callback(Output("page", "children"), Input("url", "search"))
    def open_page(query: str | None) -> Any:
        return page(subjects, *read_link(query or "", subjects))

    @app.callback(
        Output("controls", "children"), Output("text-box", "hidden"),
        Output("picture-box", "hidden"), Output("text", "value", allow_duplicate=True),
        Output("picture", "value", allow_duplicate=True),
        Output("upload-problem", "children", allow_duplicate=True),
        Input("model", "value"), prevent_initial_call=True,
    )  # fmt: skip
    def choose_model(name: str) -> Any:
        subject, state = subjects[name], subjects[name].opening
        reads_text = subject.takes == "text"
        return controls(subject, state), not reads_text, reads_text, state.text, state.picture, ""

    @app.callback(
        *[Output(*place) for place in SHOWN], Input("subject", "data"), Input("theme", "data"),
        *settings, Given("page-id", "data"),
    )  # fmt: skip
    def show(name: str, theme: str, *given: Any) -> Any:
        *values, page_id = given
        with turns.wait(str(page_id)[:36]) as is_newest:
            if not is_newest:
                raise dash.exceptions.PreventUpdate
            return answer(subjects, name, theme, values)

    @app.callback(
        Output("layer", "value"), Output("head", "value"), Input("heads", "clickData"),
        prevent_initial_call=True,
    )  # fmt: skip
    def choose_head(click: dict[str, Any] | None) -> Any:
        if not click:
            return dash.no_update, dash.no_update
        return click["points"][0]["y"], click["points"][0]["x"]

    @app.callback(
        Output("text", "value"), Input({"example": ALL}, "n_clicks"), prevent_initial_call=True
    )
    def choose_example(clicks: list[int | None]) -> Any:
        chosen = dash.ctx.triggered_id
        return EXAMPLES[chosen["example"]] if chosen and any(clicks) else dash.no_update

    @app.callback(
        Output("picture", "options"), Output("picture", "value"),
        Output("upload-problem", "children"), Input("upload", "contents"), Given("subject", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def take_upload(contents: str | None, name: str) -> Any:
        if not contents or subjects[name].takes != "picture":
            return dash.no_update, dash.no_update, ""
        try:
            own = read_upload(contents)
        except ValueError as problem:
            return dash.no_update, dash.no_update, sentence(problem)
        return picture_options(subjects, own), own, ""

    @app.callback(
        Output("export", "data"), Input("save-png", "n_clicks"), Given("subject", "data"),
        *[Given(name, "value") for name in SETTINGS], prevent_initial_call=True,
    )  # fmt: skip
    def export(clicks: int | None, name: str, *values: Any) -> Any:
        if not clicks:
            return dash.no_update
        try:
            view = look(subjects[name], read_settings(subjects[name], values))
        except ValueError:
            return dash.no_update
        state = view.state
        text = f": {state.text}" if state.text else ""
        title = f"{subjects[name].title}, layer {state.layer}, head {state.head}{text}"
        file = f"{name}-layer{state.layer}-head{state.head}-{state.operator}"
        # the same click twice saves twice
        return {**draw_export(view, title), "name": file, "click": clicks}

    app.clientside_callback(FOLLOW_THEME, Output("theme", "data"), Input("theme", "id"))
    app.clientside_callback(SHOW_LINK, Output("link", "id"), Input("link", "data"))
    app.clientside_callback(
        COPY, Output("done", "children"), Input("copy-link", "n_clicks"),
        Input("copy-python", "n_clicks"), Given("python", "children"), prevent_initial_call=True,
    )  # fmt: skip
    app.clientside_callback(
        SAVE, Output("done", "children", allow_duplicate=True), Input("export", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    return app


# what `answer` returns, in this order; a problem is first
SHOWN = (
    ("problem", "children"),
    ("finding", "children"),
    ("before-plan", "figure"), ("after-plan", "figure"),
    ("before-picture", "figure"), ("after-picture", "figure"),
    ("before-picture-box", "hidden"), ("after-picture-box", "hidden"),
    ("before-peak", "children"), ("before-entropy", "children"),
    ("after-peak", "children"), ("after-entropy", "children"),
    ("after-title", "children"),
    ("output", "figure"), ("output-note", "children"),
    ("heads", "figure"), ("heads-note", "children"),
    ("python", "children"), ("link", "data"),
    ("lam", "disabled"), ("eps", "disabled"), ("iters", "disabled"),
    ("layer-shown", "children"), ("head-shown", "children"),
    ("lam-shown", "children"), ("eps-shown", "children"), ("iters-shown", "children"),
)  # fmt: skip


def answer(subjects: Mapping[str, Subject], name: str, theme: str, values: Any) -> list[Any]:
    """All that depends on the settings, in the order of `SHOWN`."""
    from dash import no_update

    subject = subjects[name]
    try:
        state = read_settings(subject, values)
        view = look(subject, state)
    except (ValueError, TypeError, NotImplementedError) as problem:
        return [sentence(problem), *[no_update] * (len(SHOWN) - 1)]
    theme = theme if theme in ("light", "dark") else "light"
    return [
        "",
        finding(subject, view),
        *(draw_plan(view, swapped=swapped, theme=theme) for swapped in (False, True)),
        *_pictures(subject, view, theme),
        f"{view.before.peak:.4f}", f"{view.before.entropy:.4f}",
        f"{view.after.peak:.4f}", f"{view.after.entropy:.4f}",
        view.operator,
        draw_output(view, theme), f"{subject.output_is}. {change_of_output(view)}",
        draw_heads(view, theme), "click to choose",
        python_lines(subject, state), write_link(state, subject),
        *disabled_sliders(state.operator),
        str(state.layer), str(state.head), f"{state.lam:g}", f"{state.eps:.3g}", str(state.iters),
    ]  # fmt: skip


def read_settings(subject: Subject, values: Any) -> State:
    """The state of the settings of the page; a wrong one is a ValueError."""
    given = dict(zip(SETTINGS, values, strict=True))
    # what the model does not read is hidden
    del given["text" if subject.takes == "picture" else "picture"]
    # the slider of eps moves its exponent; rounded, since the number is shown and shared
    given["eps"] = float(f"{10 ** float(given['eps']):.3g}")
    return change(State(subject.name), subject, **given)


def sentence(problem: Exception) -> str:
    """An error as a sentence of the page."""
    text = str(problem).rstrip(".") + "."
    # names of options stay as they are written
    return f"T{text[1:]}" if text.startswith("the ") else text


def import_dash() -> Any:
    """The package dash, or an error that names the extra to install."""
    try:
        import dash
    except ImportError:
        raise ImportError(
            'explore needs dash; install it with: pip install "bistoch[explore]"'
        ) from None
    return dash


def _pictures(subject: Subject, view: View, theme: str) -> list[Any]:
    """The picture with what its patches receive, before and after; nothing for a text."""
    if not isinstance(subject, VitSubject):
        return [EMPTY, EMPTY, True, True]
    pixels = subject.pixels(view.state.picture)
    return [
        *(draw_picture(pixels, view, subject.grid, swapped=swapped, theme=theme)
          for swapped in (False, True)),
        False, False,
    ]  # fmt: skip
