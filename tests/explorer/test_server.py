"""The server: this machine only, nothing but the page, sentences instead of errors."""

import base64
import io
import json
import math
import re
import threading

import pytest
import torch
from typer.testing import CliRunner

from bistoch.cli import app as command
from bistoch.explorer.app import SETTINGS, SHOWN, answer, make_app
from bistoch.explorer.figures import draw_export, draw_output, draw_plan
from bistoch.explorer.page import controls, page
from bistoch.explorer.serve import HOST, guard, listen, load_subjects, make_server
from bistoch.explorer.turns import Turns
from bistoch.explorer.upload import read_upload
from bistoch.explorer.view import look
from bistoch.explorer.vit import SIDE


@pytest.fixture(scope="module")
def client(vit):
    app = make_app({"vit": vit})
    guard(app)
    return app.server.test_client()


def get(client, path, **headers):
    return client.get(path, headers={"Host": "127.0.0.1:8050", **headers})


def values(subject, **changed):
    """The settings as the page sends them: eps as its exponent."""
    state = {**vars(subject.opening), "eps": 0.0, **changed}
    return [state[name] for name in SETTINGS]


def shown(subject, theme="light", **changed):
    found = answer({subject.name: subject}, subject.name, theme, values(subject, **changed))
    return {".".join(place): value for place, value in zip(SHOWN, found, strict=True)}


def test_it_listens_on_this_machine_only(vit):
    server = make_server(make_app({"vit": vit}), listen(0))
    try:
        assert server.socket.getsockname()[0] == server.server_address[0] == HOST == "127.0.0.1"
        with pytest.raises(ValueError, match=f"port {server.server_address[1]} cannot be used"):
            listen(server.server_address[1])
    finally:
        server.server_close()


def test_other_hosts_and_origins_are_refused(client):
    assert get(client, "/").status_code == 200
    assert get(client, "/", Host="localhost:8050").status_code == 200
    assert get(client, "/", Host="evil.example").status_code == 403
    assert get(client, "/", Origin="http://evil.example").status_code == 403
    assert get(client, "/", Origin="null").status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/assets/../app.py", "/assets/%2e%2e/app.py", "/assets//etc/passwd",
     "/_dash-component-suites/dash/../../../../etc/passwd", "/pyproject.toml", "/_mcp"],
)  # fmt: skip
def test_no_file_of_the_machine_is_served(client, path):
    answered = get(client, path)
    assert answered.status_code in (400, 403, 404, 500)
    assert b"root:" not in answered.data
    assert b"import" not in answered.data


def test_everything_comes_from_this_server(client):
    answered = get(client, "/")
    sources = re.findall(rb'(?:src|href)="([^"]+)"', answered.data)
    assert len(sources) > 5
    assert all(source.startswith(b"/") for source in sources)
    policy = answered.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "'unsafe-eval'" not in policy
    assert "script-src 'self' 'sha256-" in policy


def test_the_numbers_of_the_page_are_those_of_the_view(vit):
    found, view = shown(vit, lam=0.5, eps=math.log10(0.5)), None
    assert found["problem.children"] == ""
    state = vit.opening
    view = look(vit, type(state)(**{**vars(state), "lam": 0.5, "eps": 0.5}))
    assert found["after-peak.children"] == f"{view.after.peak:.4f}"
    assert found["before-entropy.children"] == f"{view.before.entropy:.4f}"
    assert found["after-title.children"] == "elastic(lam=0.5, eps=0.5, iters=10)"
    assert found["eps-shown.children"] == "0.5"
    heatmap, bars = found["after-plan.figure"]["data"]
    assert torch.tensor(heatmap["z"]).equal(view.after.plan)
    assert torch.tensor(bars["y"]).equal(view.after.sums)
    assert "&lam=0.5&eps=0.5&" in found["link.data"]


def test_sliders_that_an_operator_does_not_have_are_off(vit):
    off = [f"{name}.disabled" for name in ("lam", "eps", "iters")]
    assert [shown(vit, operator="softmax")[name] for name in off] == [True, False, True]
    assert [shown(vit, operator="hard")[name] for name in off] == [True, True, True]
    assert [shown(vit)[name] for name in off] == [False, False, False]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"lam": 7}, "lam must be a number from 0 to 1, but it is 7."),
        ({"operator": "magic"}, "operator must be one of softmax, "),
        (
            {"operator": "monarch", "iters": 0},
            "monarch_attention: iters must be at least 1, but",
        ),
        ({"layer": None}, "layer must be a whole number from 0 to 3, but it is None."),
        ({"picture": "x"}, "picture must be the number of an example, or a picture as"),
    ],
)
def test_a_wrong_setting_gives_a_sentence_and_changes_nothing_else(vit, changed, sentence):
    found = shown(vit, **changed)
    assert found.pop("problem.children").startswith(sentence)
    assert {type(value).__name__ for value in found.values()} == {"NoUpdate"}


def test_text_of_the_user_is_escaped_where_plotly_reads_tags(minilm):
    found = shown(minilm, text="<b>bold</b> <a href='x'>y</a> & z", layer=0, head=0)
    figures = [value for name, value in found.items() if name.endswith(".figure")]
    text = json.dumps(figures)
    assert "&lt;" in text
    assert set(re.findall("<[^ ]*?>", text)) <= {"<br>", "<extra></extra>", "<extra>", "</extra>"}


def test_names_of_outputs_are_escaped(vit):
    view = look(vit, vit.opening)
    view.before.output["<i>odd</i>"] = view.after.output["<i>odd</i>"] = 0.5
    try:
        names = draw_output(view, "light")["data"][0]["y"]
        assert "&lt;i&gt;odd&lt;/i&gt;" in names
    finally:
        del view.before.output["<i>odd</i>"], view.after.output["<i>odd</i>"]


def test_dark_figures_are_dark(vit):
    view = look(vit, vit.opening)
    light, dark = (draw_plan(view, swapped=True, theme=theme) for theme in ("light", "dark"))
    assert light["layout"]["font"] != dark["layout"]["font"]
    assert light["data"][0]["colorscale"] != dark["data"][0]["colorscale"]
    assert shown(vit, theme="sunset")["problem.children"] == ""


def test_the_export_has_both_plans(vit):
    figure = draw_export(look(vit, vit.opening), "a <title>")
    assert [trace["type"] for trace in figure["data"]] == ["heatmap", "bar", "heatmap", "bar"]
    assert figure["layout"]["title"]["text"] == "a &lt;title&gt;"


def test_the_page_of_every_model_has_what_the_callbacks_ask_for(vit, minilm):
    subjects = {"vit": vit, "minilm": minilm}
    for subject in subjects.values():
        whole = json.dumps(page(subjects, subject.opening, ["a <sentence>"]), default=as_json)
        wanted = {name for name, _ in SHOWN} | set(SETTINGS) | {"subject", "theme", "upload"}
        assert {name for name in wanted if f'"id": "{name}"' not in whole} == {"link"}
        assert "a <sentence>" in whole
        assert f'"data": "{subject.name}"' in json.dumps(
            controls(subject, subject.opening), default=as_json
        )


def as_json(component):
    return component.to_plotly_json()


def upload(image, kind="PNG"):
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def test_an_uploaded_picture_becomes_one_of_the_model(vit):
    from PIL import Image

    # bright clothes on black stay as they are, dark ones on white are inverted
    black = Image.new("RGB", (300, 200))
    black.paste((255, 255, 255), (100, 50, 200, 150))
    white = Image.eval(black, lambda value: 255 - value)
    pixels = vit.pixels(read_upload(upload(black)))
    assert pixels.shape == (SIDE, SIDE)
    assert (int(pixels[0, 0]), int(pixels[14, 14])) == (0, 255)
    assert vit.pixels(read_upload(upload(white))).equal(pixels)
    assert vit.pixels(read_upload(upload(black.convert("P"), "GIF"))).shape == (SIDE, SIDE)
    assert shown(vit, picture=read_upload(upload(black)))["problem.children"] == ""


def test_what_is_no_picture_gets_a_sentence(monkeypatch):
    from PIL import Image

    def refused(contents, sentence):
        with pytest.raises(ValueError, match=sentence):
            read_upload(contents)

    refused("data:text/plain;base64,aGVsbG8=", "cannot be read as a picture")
    refused("nonsense", "cannot be read as a picture")
    cut = upload(Image.effect_noise((64, 64), 90))
    refused(cut[: len(cut) // 2], "cannot be read as a picture")
    refused("x," + "A" * (15 << 20), "larger than 10 MB")
    monkeypatch.setattr("bistoch.explorer.upload.MOST_PIXELS", 4000)
    refused(upload(Image.new("L", (100, 41))), "100 by 41 pixels")


def test_only_the_newest_question_of_a_page_is_answered():
    turns, answered, began = Turns(), [], threading.Event()
    release = threading.Event()

    def ask(name, first=False):
        with turns.wait("page") as is_newest:
            if first:
                began.set()
                release.wait(10)
            answered.append((name, is_newest))

    first = threading.Thread(target=ask, args=("first", True))
    first.start()
    assert began.wait(10)
    others = [threading.Thread(target=ask, args=(name,)) for name in ("second", "third")]
    for thread in others:
        thread.start()
        # each is counted before the next one asks
        while turns._newest["page"] < 2 + others.index(thread):
            pass
    release.set()
    for thread in [first, *others]:
        thread.join(timeout=10)
    assert dict(answered) == {"first": True, "second": False, "third": True}


def test_models_are_named_once(monkeypatch):
    monkeypatch.setattr("bistoch.explorer.serve.TextSubject", lambda name: FakeSubject(name))
    with pytest.raises(ValueError, match="two models have the same name"):
        load_subjects(["folder/vit"])


class FakeSubject:
    def __init__(self, name):
        self.name = name.rpartition("/")[2]


def test_without_dash_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dash", None)
    result = CliRunner().invoke(command, ["explore", "--no-browser"])
    assert result.exit_code == 2
    assert 'pip install "bistoch[explore]"' in result.stderr


def test_plotly_knows_every_word_of_the_figures(vit):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    figures = [value for name, value in shown(vit).items() if name.endswith(".figure")]
    for figure in [*figures, draw_export(look(vit, vit.opening), "title")]:
        # an unknown word is an error
        assert len(graph_objects.Figure(figure).data) == len(figure["data"]) > 0
