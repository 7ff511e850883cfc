"""The server: on this machine only, and nothing but the page."""

import os
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bistoch.explorer.app import import_dash, make_app
from bistoch.explorer.subject import Subject
from bistoch.explorer.text import TextSubject, minilm_is_installed
from bistoch.explorer.view import look
from bistoch.explorer.vit import VitSubject

if TYPE_CHECKING:
    import torch

HOST = "127.0.0.1"
# one request holds at most a picture, as text
MOST_BYTES = 64 << 20


def load_subjects(
    models: Sequence[str] = (), device: "torch.device | str" = "cpu"
) -> dict[str, Subject]:
    """The models to choose from: those that are named, MiniLM if it is installed, and the ViT.

    Args:
        models: folders or names on the hub, of models of transformers that read texts.
        device: where they run.
    """
    found: list[Subject] = [TextSubject(model) for model in models]
    if minilm_is_installed():
        found.append(TextSubject("minilm"))
    found.append(VitSubject())
    named = {subject.name: subject for subject in found}
    if len(named) < len(found):
        raise ValueError(
            f"explore: two models have the same name among {[one.name for one in found]}; name "
            "each once, and not minilm or vit"
        )
    for subject in found:
        subject.model.to(device)
    return named


def listen(port: int) -> socket.socket:
    """A socket of this machine only; port 0 takes any that is free."""
    try:
        return socket.create_server((HOST, port))
    except OSError as reason:
        why = os.strerror(reason.errno or 0)
        raise ValueError(
            f"explore: port {port} cannot be used ({why}); choose another with --port, or --port 0 "
            "for any that is free"
        ) from None


def make_server(app: Any, door: socket.socket) -> Any:
    """A server of an app that listens at a socket."""
    from werkzeug.serving import WSGIRequestHandler
    from werkzeug.serving import make_server as make

    class Quiet(WSGIRequestHandler):
        """No line in the terminal for each request; errors are still shown."""

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Say nothing."""

    guard(app)
    # the server makes a copy of the socket
    with door:
        port = door.getsockname()[1]
        return make(HOST, port, app.server, threaded=True, request_handler=Quiet, fd=door.fileno())


def guard(app: Any) -> None:
    """Answer only what this page asks, and let it load nothing from elsewhere."""
    from flask import abort, request

    # hashes of the scripts that stand in the page; plotly sets styles by script
    scripts = " ".join(app.csp_hashes())
    policy = (
        f"default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
    app.server.config["MAX_CONTENT_LENGTH"] = MOST_BYTES

    @app.server.before_request
    def check() -> None:
        # a page of another site could ask under a name that leads to this machine
        name = request.host.partition(":")[0]
        origin = request.headers.get("Origin")
        if name not in (HOST, "localhost") or origin not in (None, f"http://{request.host}"):
            abort(403)
        # dash would answer any other path with the page
        if request.url_rule is not None and request.url_rule.rule == "/<path:path>":
            abort(404)

    @app.server.after_request
    def add_policy(response: Any) -> Any:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"
        return response


def explore(
    models: Sequence[str] = (),
    *,
    port: int = 8050,
    browser: bool = True,
    device: "torch.device | str" = "cpu",
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Serve the explorer until it is interrupted.

    Args:
        models: more models of transformers, by folder or name on the hub.
        port: where to listen; 0 takes any that is free.
        browser: whether to open a browser.
        device: where the models run.
        say: told what happens.
    """
    import_dash()
    door = listen(port)
    say("loading models")
    subjects = load_subjects(models, device)
    server = make_server(make_app(subjects), door)
    address = f"http://{HOST}:{server.server_address[1]}/"
    # the first balance compiles kernels; nobody should wait for that at a slider
    first = next(iter(subjects.values()))
    look(first, first.opening)
    say(f"exploring {', '.join(subjects)} at {address} (Ctrl-C ends it)")
    if browser:
        threading.Timer(0.3, webbrowser.open, [address]).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
