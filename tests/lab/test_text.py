"""The vocabulary: from training texts only, padding on the right, saved and loaded."""

import json

import numpy as np
import pytest

from bistoch.lab.data import DataError
from bistoch.lab.text import SPECIAL, UNKNOWN, Vocabulary, split

TEXTS = ["the cat saw the dog", "The dog ran.", "a cat"]


def test_frequent_words_come_first_and_order_of_texts_does_not_matter():
    vocabulary = Vocabulary.from_texts(TEXTS)
    assert vocabulary.tokens == (*SPECIAL, "the", "cat", "dog", ".", "a", "ran", "saw")
    assert Vocabulary.from_texts(reversed(TEXTS)) == vocabulary
    assert Vocabulary.from_texts(iter(TEXTS), size=5).tokens == (*SPECIAL, "the", "cat", "dog")
    assert Vocabulary.from_texts(TEXTS, min_count=3).tokens == (*SPECIAL, "the")


def test_texts_are_filled_on_the_right():
    vocabulary = Vocabulary.from_texts(TEXTS)
    tokens = vocabulary.encode(["the zebra ran", "dog", ""])
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [[2, UNKNOWN, 7], [4, 0, 0], [0, 0, 0]]
    assert vocabulary.encode(["the zebra ran", "dog"], length=2).tolist() == [[2, 1], [4, 0]]
    assert vocabulary.encode([]).shape == (0, 0)
    # a row does not depend on the others, but for its padding
    assert vocabulary.encode(["dog"]).tolist() == [[4]]


def test_a_word_spelt_like_a_special_one_is_not_special():
    vocabulary = Vocabulary.from_texts(["<pad> <unk> pad"])
    assert vocabulary.encode_one("<pad>").tolist() == [vocabulary.ids[p] for p in ["<", "pad", ">"]]
    assert 0 not in vocabulary.encode_one("<pad> <unk>")


def test_characters_come_back():
    text = "Étude №1\n\tend"
    vocabulary = Vocabulary.from_texts([text], unit="character")
    assert len(vocabulary) == len(set(text)) + 2
    assert vocabulary.decode(vocabulary.encode_one(text)) == text


def test_words_of_other_alphabets():
    assert split("Ça va, 東京?", "word") == ["ça", "va", ",", "東京", "?"]


def test_it_is_saved_and_loaded(tmp_path):
    vocabulary = Vocabulary.from_texts([*TEXTS, 'naïve \u2028 "quote"'], unit="character")
    vocabulary.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json") == vocabulary
    assert [file.name for file in tmp_path.iterdir()] == ["vocabulary.json"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "not a vocabulary, since it is not JSON"),
        ("[]", "expected a JSON object of format"),
        (json.dumps({"format": "bistoch vocabulary 2", "unit": "word", "tokens": [*SPECIAL, [3]]}),
         "every token must be text, but one is"),
        (json.dumps({"format": "bistoch vocabulary 2", "unit": "word", "tokens": ["a"]}),
         "must start with <pad>, <unk>"),
        (json.dumps({"format": "bistoch vocabulary 2", "unit": "word",
                     "tokens": [*SPECIAL, "a", "a"]}), "3 different ones among 4"),
        (json.dumps({"format": "bistoch vocabulary 2", "unit": "byte", "tokens": [*SPECIAL]}),
         "unit must be 'word' or 'character', but it is 'byte'"),
    ],
)  # fmt: skip
def test_a_broken_file_is_told(tmp_path, content, sentence):
    (tmp_path / "v.json").write_text(content)
    with pytest.raises(DataError, match=sentence):
        Vocabulary.load(tmp_path / "v.json")


def test_other_mistakes_are_told(tmp_path):
    with pytest.raises(DataError, match="there is no vocabulary here"):
        Vocabulary.load(tmp_path / "none.json")
    with pytest.raises(DataError, match="size must be above 2"):
        Vocabulary.from_texts(TEXTS, size=2)
    with pytest.raises(DataError, match="but it is 'byte'"):
        Vocabulary.from_texts(TEXTS, unit="byte")
