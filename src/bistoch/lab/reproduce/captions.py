"""Captions of Multi30k as vectors: words counted and mapped by ridge regression, or MiniLM."""

import functools
import io
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bistoch.lab.data import DATASETS, find, load
from bistoch.lab.files import write_whole
from bistoch.lab.search.halves import unit

Vectors = Float[np.ndarray, "count features"]

# the languages that English captions look for, by their names
LANGUAGES = {"German": "de", "French": "fr", "Czech": "cs"}
# axes of a language, strength of the ridge regression, and in how many captions a word must be
AXES, RIDGE, RARE = 300, 1.0, 2


def is_here() -> bool:
    """Whether the captions are on this machine."""
    return find(DATASETS["multi30k"]) is not None


class WordAxes:
    """Latent semantic axes of a language: TF-IDF of its words, then truncated SVD.

    >>> texts = ["a red dog", "a red cat", "a dog runs", "a cat runs"] * 2
    >>> WordAxes(texts, axes=3)(["a red dog", "unseen"]).shape
    (2, 3)
    """

    def __init__(self, texts: Sequence[str], axes: int = AXES):
        from scipy.sparse.linalg import svds

        counts = Counter(word for text in texts for word in set(_words(text)))
        kept = sorted(word for word, count in counts.items() if count >= RARE)
        self._places = {word: place for place, word in enumerate(kept)}
        found = np.array([counts[word] for word in kept])
        self._weights = np.log((1 + len(texts)) / (1 + found)) + 1
        matrix = self._count(texts)
        # a fixed start makes the axes the same in every run, up to rounding
        start = np.ones(min(matrix.shape))
        _, _, right = svds(matrix, k=min(axes, min(matrix.shape) - 1), v0=start)
        self._axes = right.T

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Texts as vectors, not of length one."""
        return np.asarray(self._count(texts) @ self._axes)

    def _count(self, texts: Sequence[str]) -> Any:
        from scipy.sparse import coo_array, diags_array

        rows, columns = [], []
        for row, text in enumerate(texts):
            known = [self._places[word] for word in _words(text) if word in self._places]
            columns += known
            rows += [row] * len(known)
        shape = (len(texts), len(self._places))
        counts = coo_array((np.ones(len(rows)), (rows, columns)), shape).tocsr()
        counts.sum_duplicates()
        counts.data = (1 + np.log(counts.data)) * self._weights[counts.indices]
        length = np.sqrt(counts.multiply(counts).sum(1))
        return diags_array(1 / np.maximum(length, 1e-12)) @ counts


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def pick(split: str, language: str, first: int, last: int) -> list[str]:
    """Some captions of a split, in their order."""
    return _captions().__getattribute__(split)[language][first:last]


@functools.cache
def _captions() -> Any:
    return load("multi30k")


class WordMap:
    """Captions of two languages as vectors of the second: axes of words and a ridge regression.

    Args:
        language: whose captions are looked for.
        train: so many pairs teach the axes and the map.
    """

    def __init__(self, language: str, train: int):
        ours, theirs = (pick("train", name, 0, train) for name in ("en", language))
        self._from, self._to = _axes("en", train), _axes(language, train)
        asked, wanted = self._from(ours), self._to(theirs)
        products = asked.T @ asked + RIDGE * np.eye(asked.shape[1])
        self._weight = np.linalg.solve(products, asked.T @ wanted)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """English captions, taken to where their translations should be."""
        return unit(self._from(texts) @ self._weight)

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Captions of the other language."""
        return unit(self._to(texts))


@functools.cache
def _axes(language: str, train: int) -> WordAxes:
    return WordAxes(pick("train", language, 0, train))


def embed_kept(texts: Sequence[str], file: Path) -> Vectors:
    """Embeddings of all-MiniLM-L6-v2, of length one; read from a file if they were made before."""
    from bistoch.lab.reproduce.encoder import Encoder

    if file.exists():
        found: Vectors = np.load(file, allow_pickle=False)
        if len(found) == len(texts):
            return found
    found = unit(Encoder(texts).before.numpy())
    file.parent.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    np.save(stream, found)
    write_whole(file, stream.getvalue())
    return found
