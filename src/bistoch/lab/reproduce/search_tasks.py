"""Search tasks of the studies `retrieval` and `hubs`: pictures that are shipped, and captions."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from bistoch.lab.data import load
from bistoch.lab.reproduce import captions
from bistoch.lab.search.halves import KINDS, cut_halves

Vectors = Float[np.ndarray, "count features"]

# what a method learns its bias from, and what is searched
REGIMES = {
    "known": "the queries themselves",
    "bank": "other queries",
    "distractors": "other queries, with documents that no query asks for",
}
WORDS, MINILM = "words", "MiniLM"
# everything that is searched: kinds of halves, and English captions to a language by an encoder
CAPTIONS = {
    f"{encoder}, English finds {language}": (encoder, code)
    for encoder in (WORDS, MINILM)
    for language, code in captions.LANGUAGES.items()
}
SOURCES = (*KINDS, *CAPTIONS)


@dataclass(frozen=True)
class Task:
    """Unit vectors: query i looks for document i, and documents beyond that are distractors."""

    queries: Vectors
    documents: Vectors
    bank: Vectors


@dataclass(frozen=True)
class TaskSizes:
    """Of captions: pairs that teach the map, searches, queries of a bank, and distractors."""

    train: int = 20000
    searches: int = 1000
    bank: int = 3000
    distractors: int = 3000


def load_task(
    source: str, regime: str, sizes: TaskSizes, folder: Path, *, validation: bool = False
) -> Task:
    """One task.

    Args:
        source: one of `SOURCES`.
        regime: a key of `REGIMES`.
        sizes: of captions; halves have those of the shipped pictures.
        folder: where embeddings are kept.
        validation: other pairs, to choose a temperature.
    """
    if source in KINDS:
        return _halves(source, regime, validation)
    asked, wanted, bank, more = _caption_vectors(source, sizes, folder, validation)
    return _task(regime, asked, wanted, bank, more)


def _task(regime: str, asked: Vectors, wanted: Vectors, bank: Vectors, more: Vectors) -> Task:
    documents = np.concatenate([wanted, more]) if regime == "distractors" else wanted
    return Task(asked, documents, asked if regime == "known" else bank)


@functools.lru_cache(maxsize=4)
def _halves(kind: str, regime: str, validation: bool) -> Task:
    data = load("fashion-mnist-small")
    train, test = data.x_train, data.x_test
    if validation:
        train, test = train[:3000], train[3000:]
    # the second half of the training pictures are distractors: no query of the bank is of them
    middle = len(train) // 2
    found = cut_halves(kind, train, np.concatenate([test, train[middle:]]))
    bank = found.bank[:middle] if regime == "distractors" else found.bank
    count = len(test)
    return _task(
        regime, found.queries[:count], found.documents[:count], bank, found.documents[count:]
    )


@functools.lru_cache(maxsize=4)
def _caption_vectors(
    source: str, sizes: TaskSizes, folder: Path, validation: bool
) -> tuple[Vectors, Vectors, Vectors, Vectors]:
    """Queries, their documents, the bank and the distractors."""
    encoder, language = CAPTIONS[source]
    split = "valid" if validation else "test"
    banked = sizes.train + sizes.bank
    asked, wanted = (captions.pick(split, x, 0, sizes.searches) for x in ("en", language))
    bank = captions.pick("train", "en", sizes.train, banked)
    more = captions.pick("train", language, banked, banked + sizes.distractors)
    if encoder == WORDS:
        found = _word_map(language, sizes.train)
        return (
            found.queries(asked), found.documents(wanted), found.queries(bank),
            found.documents(more),
        )  # fmt: skip
    files = {
        f"en-{split}": asked,
        f"{language}-{split}": wanted,
        f"en-bank-{sizes.train}": bank,
        f"{language}-distractors-{banked}": more,
    }
    made = [captions.embed_kept(texts, folder / f"{name}.npy") for name, texts in files.items()]
    return made[0], made[1], made[2], made[3]


@functools.lru_cache(maxsize=1)
def _word_map(language: str, train: int) -> captions.WordMap:
    return captions.WordMap(language, train)
