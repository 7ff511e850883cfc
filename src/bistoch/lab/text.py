"""Words or characters as whole numbers: a vocabulary made from the training texts."""

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

# what stands for every piece that the training texts do not have often enough
UNKNOWN = 1
SPECIAL = ("<pad>", "<unk>")
WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
FORM = "bistoch vocabulary 1"


@dataclass(frozen=True)
class Vocabulary:
    """The pieces a model knows, by number: 0 is padding, 1 unknown, then the most frequent first.

    A "word" is a run of letters and digits in lower case, or a single sign; a "character" is taken
    as it is.

    Args:
        unit: what a piece is.
        pieces: all that are known, the two special ones first.

    >>> vocabulary = Vocabulary.from_texts(["It isn't good.", "Good, good!"], unit="word")
    >>> vocabulary.pieces
    ('<pad>', '<unk>', 'good', '!', ',', '.', "isn't", 'it')
    >>> vocabulary.encode(["Good film!", "good"])
    array([[2, 1, 3],
           [2, 0, 0]])
    """

    unit: Literal["word", "character"]
    pieces: tuple[str, ...]

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        *,
        unit: Literal["word", "character"] = "word",
        size: int = 20000,
        least: int = 1,
    ) -> "Vocabulary":
        """The most frequent pieces of texts; equally frequent ones in the order of the alphabet.

        Args:
            texts: the training texts, and no others.
            unit: "word" or "character".
            size: how many pieces to keep at most, the special ones counted.
            least: how often a piece must occur to be kept.
        """
        _check_unit(unit)
        if size <= len(SPECIAL):
            raise DataError(
                f"vocabulary: size must be above {len(SPECIAL)}, which padding and unknown take, "
                f"but it is {size}"
            )
        counts = Counter(chain.from_iterable(split(text, unit) for text in texts))
        often = [piece for piece, count in counts.items() if count >= least]
        often.sort(key=lambda piece: (-counts[piece], piece))
        return cls(unit, (*SPECIAL, *often[: size - len(SPECIAL)]))

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of every piece; the special ones have none, since no text holds them."""
        return {piece: n for n, piece in enumerate(self.pieces) if n >= len(SPECIAL)}

    def encode_one(self, text: str) -> Int[np.ndarray, "n"]:
        """A text of any length as numbers, without padding: for running text.

        >>> Vocabulary.from_texts(["abba"], unit="character").encode_one("cab")
        array([1, 2, 3])
        """
        numbers = self.numbers
        return np.array([numbers.get(p, UNKNOWN) for p in split(text, self.unit)], np.int64)

    def encode(
        self, texts: Sequence[str], *, length: int | None = None
    ) -> Int[np.ndarray, "texts length"]:
        """Texts as rows of numbers, filled up on the right with zeros.

        Args:
            texts: what to encode.
            length: cut longer texts to so many pieces; by default none is cut. Rows are as long as
                the longest text that is left.
        """
        rows = [self.encode_one(text)[:length] for text in texts]
        filled = np.full((len(rows), max(map(len, rows), default=0)), PADDING, np.int64)
        for place, row in zip(filled, rows, strict=True):
            place[: len(row)] = row
        return filled

    def decode(self, tokens: Iterable[int]) -> str:
        """The pieces behind the numbers, padding left out; words with a space between them.

        >>> Vocabulary.from_texts(["abba"], unit="character").decode([2, 3, 0])
        'ab'
        """
        between = " " if self.unit == "word" else ""
        return between.join(self.pieces[token] for token in tokens if token != PADDING)

    def save(self, path: Path) -> None:
        """Write a JSON file, in one step."""
        content = {"form": FORM, "unit": self.unit, "pieces": self.pieces}
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
        pieces = content.get("pieces") if isinstance(content, dict) else None
        if not isinstance(pieces, list) or content.get("form") != FORM:
            raise DataError(f"{path}: not a vocabulary; expected a JSON object of form {FORM!r}")
        if strange := [piece for piece in pieces if not isinstance(piece, str)]:
            raise DataError(f"{path}: every piece must be text, but one is {strange[0]!r}")
        _check_unit(content.get("unit"))
        if tuple(pieces[:2]) != SPECIAL or len(set(pieces)) < len(pieces):
            raise DataError(
                f"{path}: the pieces must start with {', '.join(SPECIAL)} and differ from each "
                f"other, but there are {len(set(pieces))} different ones among {len(pieces)}, the "
                f"first {pieces[:2]}"
            )
        return cls(content["unit"], tuple(pieces))


def split(text: str, unit: str) -> list[str]:
    """The pieces of a text.

    >>> split("It isn't 2 good...", "word")
    ['it', "isn't", '2', 'good', '.', '.', '.']
    """
    return WORD.findall(text.lower()) if unit == "word" else list(text)


def _check_unit(unit: object) -> None:
    if unit not in ("word", "character"):
        raise DataError(f"vocabulary: unit must be 'word' or 'character', but it is {unit!r}")
