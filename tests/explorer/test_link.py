"""A link holds the whole state; what it cannot hold is answered by a sentence."""

from dataclasses import replace
from urllib.parse import urlencode

import pytest

from bistoch.explorer.link import change, pack_pixels, read_link, unpack_pixels, write_link
from bistoch.explorer.state import State


def test_a_link_restores_the_state(vit):
    own = pack_pixels(bytes(range(256)) * 3 + bytes(16))
    state = State(
        "vit", picture=own, layer=3, head=1, operator="entmax", where="layer", lam=0.35, eps=0.0316,
        iters=17,
    )  # fmt: skip
    assert read_link(write_link(state, vit), {"vit": vit}) == (state, [])


@pytest.mark.parametrize("text", ["a & b = c?", "l'été «ça» 'q' \"z\" \\n", "<b>x</b>", "漢字 🙂"])
def test_any_text_survives_a_link(minilm, text):
    state = replace(minilm.opening, text=text)
    assert read_link(write_link(state, minilm), {"minilm": minilm}) == (state, [])


def test_an_empty_link_is_the_opening_view(vit):
    assert read_link("", {"vit": vit}) == (vit.opening, [])


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("lam=2", "In the link, lam must be a number from 0 to 1, but it is '2'."),
        ("lam=nan", "In the link, lam must be a number from 0 to 1, but it is 'nan'."),
        ("eps=0", "In the link, eps must be a number from 0.01 to 10, but it is '0'."),
        ("iters=2.5", "In the link, iters must be a whole number, but it is '2.5'."),
        ("iters=1e99", "In the link, iters must be a whole number from 0 to 50, but it is '1e99'."),
        ("layer=4", "In the link, layer must be a whole number from 0 to 3, but it is '4'."),
        ("head=-1", "In the link, head must be a whole number from 0 to 3, but it is '-1'."),
        ("where=roof", "In the link, where must be one of head, layer, model, but it is 'roof'."),
        ("text=+", "In the link, the text is empty; write at least one word."),
        ("colour=red", "In the link, 'colour' is no part of a state."),
        ("model=gone&layer=1", "The link asks for the model 'gone', but here are: vit."),
        ("picture=10", "In the link, picture must be a number from 0 to 9, or a picture as a "
         "link of this page holds it, but it is '10'."),
        ("picture=../../etc/passwd", "In the link, picture must be the number of an example, or "
         "a picture as a link of this page holds it."),
    ],
)  # fmt: skip
def test_a_wrong_value_gives_a_sentence_and_the_rest_is_kept(vit, query, sentence):
    state, problems = read_link(f"?{query}", {"vit": vit})
    assert problems == [sentence]
    assert state == replace(vit.opening)
    state, problems = read_link(f"?{query}&lam=0.25&where=layer", {"vit": vit})
    if not query.startswith(("model", "lam", "where")):
        assert (state.lam, state.where, problems) == (0.25, "layer", [sentence])


def test_an_operator_that_does_not_fit_is_refused(vit):
    _, (sentence,) = read_link("?operator=causal_elastic", {"vit": vit})
    assert sentence.startswith("In the link, operator must be one of softmax, elastic, ")


def test_an_endless_link_is_not_read(vit):
    _, (sentence,) = read_link("?" + urlencode({"text": "x" * 17000}), {"vit": vit})
    assert "longer than 16000" in sentence


def test_a_text_that_is_too_long_is_refused(minilm):
    with pytest.raises(ValueError, match="1001 characters, more than 1000"):
        change(minilm.opening, minilm, text="x" * 1001)


def test_packed_pixels_never_grow_beyond_a_picture():
    packed = pack_pixels(bytes(50_000_000))
    with pytest.raises(ValueError, match="picture must be"):
        unpack_pixels(packed, 784)
