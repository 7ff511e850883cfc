"""The state of the page as a link, and what a link may say."""

import base64
import math
import zlib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from bistoch.explorer.state import EPS, ITERS, WHERE, State
from bistoch.explorer.subject import Subject

LONGEST_TEXT = 1000
# a text in another script takes nine characters for one
LONGEST_LINK = 16_000


def write_link(state: State, subject: Subject) -> str:
    """The query of a link that opens the page in a state.

    >>> from bistoch.explorer.vit import VitSubject
    >>> write_link(State("vit", picture="3", layer=1, lam=0.5), VitSubject())
    '?model=vit&picture=3&layer=1&head=0&operator=elastic&where=head&lam=0.5&eps=1.0&iters=10'
    """
    other = "text" if subject.takes == "picture" else "picture"
    named = {field.name: getattr(state, field.name) for field in fields(State)}
    return "?" + urlencode({name: value for name, value in named.items() if name != other})


def read_link(query: str, subjects: Mapping[str, Subject]) -> tuple[State, list[str]]:
    """The state of a link, and a sentence for each value that it cannot have.

    What is missing or wrong is as in the opening view of the model.
    """
    if len(query) > LONGEST_LINK:
        first = next(iter(subjects.values()))
        return first.opening, [
            f"The link is longer than {LONGEST_LINK} characters and was not read."
        ]
    given = dict(parse_qsl(query.removeprefix("?"), keep_blank_values=True))
    problems: list[str] = []
    name = given.pop("model", next(iter(subjects)))
    if name not in subjects:
        known = ", ".join(subjects)
        problems.append(f"The link asks for the model {name!r}, but here are: {known}.")
        # layer and head are those of another model
        given = {}
    subject = subjects.get(name) or next(iter(subjects.values()))
    state = subject.opening
    # a layer says how many heads there are, so it is read before the head
    for key, word in ({k: given[k] for k in _READERS if k in given} | given).items():
        try:
            state = change(state, subject, **{key: word})
        except ValueError as problem:
            problems.append(f"In the link, {problem}.")
    return state, problems


def change(state: State, subject: Subject, **values: Any) -> State:
    """The state with other values, which may be words of a link; a wrong one is a ValueError."""
    for name, value in values.items():
        if name not in _READERS:
            raise ValueError(f"{name!r} is no part of a state")
        read: Any = _READERS[name](value, state, subject)
        state = replace(state, **{name: read})
    return state


def pack_pixels(pixels: bytes) -> str:
    """Grey values as text that fits into a link; `unpack_pixels` reads it.

    >>> unpack_pixels(pack_pixels(bytes(16)), 16) == bytes(16)
    True
    """
    return base64.urlsafe_b64encode(zlib.compress(pixels, 9)).decode().rstrip("=")


def unpack_pixels(packed: str, count: int) -> bytes:
    """So many grey values, or a ValueError."""
    try:
        squeezed = base64.b64decode(packed + "=" * (-len(packed) % 4), b"-_", validate=True)
        # never more than what is wanted, whatever the text would grow to
        pixels = zlib.decompressobj().decompress(squeezed, count + 1)
    except (ValueError, zlib.error):
        pixels = b""
    if len(pixels) != count:
        raise ValueError(
            "picture must be the number of an example, or a picture as a link of this page holds it"
        )
    return pixels


def _read_text(word: Any, state: State, subject: Subject) -> str:
    text = " ".join(str(word).split())
    if not text:
        raise ValueError("the text is empty; write at least one word")
    if len(text) > LONGEST_TEXT:
        raise ValueError(
            f"the text has {len(text)} characters, more than {LONGEST_TEXT}; give a shorter one"
        )
    return text


def _read_picture(word: Any, state: State, subject: Subject) -> str:
    word = str(word)
    subject.check_picture(word)
    return word


def _read_layer(word: Any, state: State, subject: Subject) -> int:
    return _whole("layer", word, 0, len(subject.heads) - 1)


def _read_head(word: Any, state: State, subject: Subject) -> int:
    return _whole("head", word, 0, subject.heads[state.layer] - 1)


def _read_operator(word: Any, state: State, subject: Subject) -> str:
    return _one_of("operator", word, subject.operators)


def _one_of(name: str, word: Any, known: Any) -> str:
    if word not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, but it is {word!r}")
    return str(word)


def _whole(name: str, word: Any, least: int, most: int) -> int:
    number = _number(name, word, least, most, "a whole number")
    if number != int(number):
        raise ValueError(f"{name} must be a whole number, but it is {word!r}")
    return int(number)


def _number(name: str, word: Any, least: float, most: float, kind: str = "a number") -> float:
    try:
        number = float(word)
    except (TypeError, ValueError):
        number = math.nan
    # a NaN is not inside either
    if not least <= number <= most:
        raise ValueError(f"{name} must be {kind} from {least:g} to {most:g}, but it is {word!r}")
    return number


_READERS = {
    "text": _read_text,
    "picture": _read_picture,
    "layer": _read_layer,
    "head": _read_head,
    "operator": _read_operator,
    "where": lambda word, state, subject: _one_of("where", word, WHERE),
    "lam": lambda word, state, subject: _number("lam", word, 0, 1),
    "eps": lambda word, state, subject: _number("eps", word, *EPS),
    "iters": lambda word, state, subject: _whole("iters", word, *ITERS),
}
