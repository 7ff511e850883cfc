"""Texts as token ids: a vocabulary of words or characters, made from the training texts."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int

from bistoch.lab.data import DataError
from bistoch.lab.files import write_whole
from bistoch.models.ids import PADDING

Unit = Literal["word", "character"]
# the id of every token that the training texts do not have often enough
UNKNOWN = 1
SPECIAL = ("<pad>", "<unk>")
WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
FORMAT = "bistoch vocabulary 2"


@dataclass(frozen=True)
class Vocabulary:
    """The known tokens by id: 0 is padding, 1 unknown, then the most frequent first.

    A "word" is a run of letters and digits in lower case, or a single other character; a
    "character" is taken as it is.

    Args:
        unit: what a token is.
        tokens: all that are known, the two special ones first.

    >>> vocabulary = Vocabulary.from_texts(["It isn't good.", "Good, good!"], unit="word")
    >>> vocabulary.tokens
    ('<pad>', '<unk>', 'good', '!', ',', '.', "isn't", 'it')
    >>> vocabulary.encode(["Good film!", "good"])
    array([[2, 1, 3],
           [2, 0, 0]])
    """

    unit: Unit
    tokens: tuple[str, ...]

    @classmethod
    def from_texts(
        cls, texts: Iterable[str], *, unit: Unit = "word", size: int = 20000, min_count: int = 1
    ) -> "Vocabulary":
        """The most frequent tokens of texts; equally frequent ones in alphabetical order.

        Args:
            texts: the training texts, and no others.
            unit: "word" or "character".
            size: how many tokens to keep at most, the special ones included.
            min_count: how often a token must occur to be kept.
        """
        _check_unit(unit)
        if size <= len(SPECIAL):
            raise DataError(
                f"vocabulary: size must be above {len(SPECIAL)}, which padding and unknown take, "
                f"but it is {size}"
            )
        counts = Counter(chain.from_iterable(split(text, unit) for text in texts))
        frequent = [token for token, count in counts.items() if count >= min_count]
        frequent.sort(key=lambda token: (-counts[token], token))
        return cls(unit, (*SPECIAL, *frequent[: size - len(SPECIAL)]))

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of every token except the special ones, since no text holds these."""
        return {token: i for i, token in enumerate(self.tokens) if i >= len(SPECIAL)}

    def encode_one(self, text: str) -> Int[np.ndarray, "n"]:
        """The token ids of a text of any length, without padding.

        >>> Vocabulary.from_texts(["abba"], unit="character").encode_one("cab")
        array([1, 2, 3])
        """
        return np.array([self.ids.get(t, UNKNOWN) for t in split(text, self.unit)], np.int64)

    def encode(
        self, texts: Sequence[str], *, length: int | None = None
    ) -> Int[np.ndarray, "texts length"]:
        """The token ids of texts, padded with zeros to the longest.

        Args:
            texts: what to encode.
            length: truncate longer texts to so many tokens; by default none is truncated.
        """
        rows = [self.encode_one(text)[:length] for text in texts]
        padded = np.full((len(rows), max(map(len, rows), default=0)), PADDING, np.int64)
        for target, row in zip(padded, rows, strict=True):
            target[: len(row)] = row
        return padded

    def decode(self, ids: Iterable[int]) -> str:
        """The tokens of ids without padding; words with a space between them.

        >>> Vocabulary.from_texts(["abba"], unit="character").decode([2, 3, 0])
        'ab'
        """
        between = " " if self.unit == "word" else ""
        return between.join(self.tokens[i] for i in ids if i != PADDING)

    def save(self, path: Path) -> None:
        """Write a JSON file, in one step."""
        content = {"format": FORMAT, "unit": self.unit, "tokens": self.tokens}
        write_whole(path, json.dumps(content, ensure_ascii=False, indent=0).encode())

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read what `save` wrote."""
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise DataError(f"{path}: there is no vocabulary here") from None
        except ValueError as broken:
            raise DataError(f"{path}: not a vocabulary, since it is not JSON ({broken})") from None
        tokens = content.get("tokens") if isinstance(content, dict) else None
        if not isinstance(tokens, list) or content.get("format") != FORMAT:
            raise DataError(
                f"{path}: not a vocabulary; expected a JSON object of format {FORMAT!r}"
            )
        if not_text := [token for token in tokens if not isinstance(token, str)]:
            raise DataError(f"{path}: every token must be text, but one is {not_text[0]!r}")
        _check_unit(content.get("unit"))
        if tuple(tokens[:2]) != SPECIAL or len(set(tokens)) < len(tokens):
            raise DataError(
                f"{path}: the tokens must start with {', '.join(SPECIAL)} and differ from each "
                f"other, but there are {len(set(tokens))} different ones among {len(tokens)}, the "
                f"first {tokens[:2]}"
            )
        return cls(content["unit"], tuple(tokens))


def split(text: str, unit: str) -> list[str]:
    """The tokens of a text.

    >>> split("It isn't 2 good...", "word")
    ['it', "isn't", '2', 'good', '.', '.', '.']
    """
    return WORD.findall(text.lower()) if unit == "word" else list(text)


def _check_unit(unit: object) -> None:
    if unit not in ("word", "character"):
        raise DataError(f"vocabulary: unit must be 'word' or 'character', but it is {unit!r}")
