"""Sentences to embed: of data sets that are fetched, or a few of the library's own."""

import functools
from dataclasses import dataclass

import numpy as np

# the sets of a full run and of a smoke run
SETS = {False: ("AG News", "Multi30k captions"), True: ("own sentences",)}
# of every set: how many sentences are compared, and how many others choose the heads
COMPARED, CHOOSING = 200, 32


@dataclass(frozen=True)
class Sentences:
    """One set: sentences to compare with topics, if it has them, and others that choose heads."""

    name: str
    compared: list[str]
    topics: list[int] | None
    choosing: list[str]


@functools.cache
def load_sentences(own: bool, seed: int) -> list[Sentences]:
    """News and captions, or the library's own; what chooses heads is never compared."""
    names = SETS[own]
    if own:
        lines = [(line, topic) for topic, some in enumerate(OWN) for line in some]
        compared = [pair for place, pair in enumerate(lines) if place % 3]
        choosing = [line for place, (line, _) in enumerate(lines) if not place % 3]
        texts, topics = [line for line, _ in compared], [topic for _, topic in compared]
        return [Sentences(names[0], texts, topics, choosing)]
    from bistoch.lab.data import load

    news, captions = load("agnews"), load("multi30k")
    pick = _pick(len(news.x_test), COMPARED, seed)
    other = _pick(len(news.x_train), CHOOSING, seed)
    return [
        Sentences(
            names[0],
            [news.x_test[i] for i in pick],
            [int(news.y_test[i]) for i in pick],
            [news.x_train[i] for i in other],
        ),
        Sentences(
            names[1],
            [captions.test["en"][i] for i in _pick(len(captions.test["en"]), COMPARED, seed)],
            None,
            [captions.valid["en"][i] for i in _pick(len(captions.valid["en"]), CHOOSING, seed)],
        ),
    ]


def _pick(size: int, count: int, seed: int) -> list[int]:
    """Places drawn at random, the same for the same seed."""
    return sorted(np.random.default_rng(seed).choice(size, count, replace=False).tolist())


# four topics with six sentences each
OWN = (
    (
        "The bakery on the corner sells rye bread and sweet rolls.",
        "She kneads the dough slowly and lets it rest overnight.",
        "Fresh loaves come out of the oven before sunrise.",
        "A pinch of salt brings out the taste of the crust.",
        "They bought warm rolls and jam for breakfast.",
        "The recipe asks for three eggs and a cup of milk.",
    ),
    (
        "The striker scored twice in the last ten minutes of the match.",
        "Fans cheered as the team lifted the cup.",
        "The goalkeeper saved a penalty and kept his side ahead.",
        "Heavy rain delayed the start of the second half.",
        "The coach praised the young players after the game.",
        "A late goal sent the home team into the final.",
    ),
    (
        "The telescope recorded light from a galaxy far away.",
        "Astronomers found a planet that circles two stars.",
        "The probe sent back pictures of the rings of Saturn.",
        "A comet passed close to the Earth last night.",
        "The moon pulls on the oceans and makes the tides.",
        "New measurements changed what we know about black holes.",
    ),
    (
        "The bank raised its interest rates for the third time this year.",
        "Shares fell after the company reported a loss.",
        "Investors worry that prices will keep rising.",
        "The central bank bought bonds to calm the market.",
        "Exports grew while the currency lost value.",
        "The board agreed to sell its insurance business.",
    ),
)
