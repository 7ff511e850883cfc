"""Tasks without classes: the next character of a text, the next rows of a series."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from bistoch.lab.data import Corpus, Series
from bistoch.lab.text import Vocabulary
from bistoch.lab.train.task import Batch

# characters of a window, unless said otherwise
WINDOW = 128


class NextCharacter:
    """Windows of running text, side by side; the score is bits per character (or byte).

    Args:
        data: what was loaded.
        length: characters of a window.

    >>> task = NextCharacter(Corpus("tiny", "corpus", "abab" * 9, "abab", "abab"), length=3)
    >>> task.count("train"), task.batch("train", torch.tensor([0]))
    (11, Batch(inputs=(tensor([[2, 3, 2]]),), target=tensor([[3, 2, 3]])))
    """

    score_name, larger_is_better, kind = "bits", False, "corpus"

    def __init__(self, data: Corpus, *, length: int = WINDOW):
        self.name, self.length = data.name, length
        self.texts = {"train": data.train, "valid": data.valid, "test": data.test}
        as_bytes = isinstance(data.train, bytes)
        train = signs(data.train, as_bytes)
        self.read_with(Vocabulary.from_texts([train], unit="character").pieces, as_bytes=as_bytes)
        if self.count("train") < 1 or self.count("test") < 1:
            counts = [len(self.numbers[name]) for name in ("train", "test")]
            raise ValueError(
                f"{data.name}: train and test must have more than {length} characters, the length "
                f"of a window, but they have {counts[0]} and {counts[1]}; give a smaller length"
            )

    def read_with(self, pieces: Sequence[str], *, as_bytes: bool) -> None:
        """Read all texts with these pieces: their own, or those of a trained model."""
        vocabulary = Vocabulary("character", tuple(pieces))
        self.numbers = {
            name: torch.from_numpy(vocabulary.encode_one(signs(text, as_bytes)))
            for name, text in self.texts.items()
        }
        self.sizes = {"vocabulary": len(vocabulary)}
        self.facts: dict[str, Any] = {"length": self.length, "pieces": list(pieces)}
        if as_bytes:
            self.facts["bytes"] = True

    def count(self, split: str) -> int:
        """The number of windows of a split."""
        return max(len(self.numbers[split]) - 1, 0) // self.length

    def batch(self, split: str, rows: Int[Tensor, "b"]) -> Batch:
        """Some windows of a split, and what follows every character."""
        places = rows[:, None] * self.length + torch.arange(self.length)
        return Batch((self.numbers[split][places],), self.numbers[split][places + 1])

    def losses(
        self, output: Float[Tensor, "b n v"], target: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b"]:
        """Mean cross-entropy of a window."""
        found = functional.cross_entropy(output.float().mT, target, reduction="none")
        return found.mean(-1)

    def scores(
        self, output: Float[Tensor, "b n v"], target: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b"]:
        """Bits per character."""
        return self.losses(output, target) / math.log(2)


def signs(text: str | bytes, as_bytes: bool) -> str:
    """What a model counts: characters, or every byte as the character of its number.

    >>> signs("é", as_bytes=False), len(signs("é", as_bytes=True))
    ('é', 2)
    """
    if as_bytes:
        return (text.encode() if isinstance(text, str) else text).decode("latin-1")
    return text if isinstance(text, str) else text.decode(errors="replace")


class Forecast:
    """Windows of a series, scaled as train is; the score is the mean square error.

    Args:
        data: what was loaded.
        lookback, horizon: rows that are seen, and rows that are asked for.

    >>> values = np.arange(60.0).reshape(30, 2)
    >>> data = Series("line", "series", values, np.arange(30), ("a", "b"), "a", (18, 24, 30))
    >>> task = Forecast(data, lookback=4, horizon=2)
    >>> task.count("train"), task.count("test"), task.batch("test", torch.tensor([0])).target.shape
    (13, 5, torch.Size([1, 2, 2]))
    """

    score_name, larger_is_better, kind = "mse", False, "series"

    def __init__(self, data: Series, *, lookback: int, horizon: int):
        self.name, self.lookback, self.horizon = data.name, lookback, horizon
        mean, deviation = data.train.mean(0), data.train.std(0)
        scaled = (data.values - mean) / np.where(deviation > 0, deviation, 1)
        self.values = torch.from_numpy(scaled).float()
        self.train_rows = data.borders[0]
        ends = (lookback, *data.borders)
        # a forecast is of the split its first row lies in, and all its rows must lie there
        self.starts = {
            name: range(begin, end - horizon + 1)
            for name, begin, end in zip(
                ("train", "valid", "test"), ends, data.borders, strict=False
            )
        }
        self.sizes = {"channels": data.values.shape[1]}
        self.facts: dict[str, Any] = {
            "columns": list(data.columns), "mean": mean.tolist(), "deviation": deviation.tolist(),
        }  # fmt: skip
        if self.count("train") < 1 or self.count("test") < 1:
            raise ValueError(
                f"{data.name}: train and test must hold a window of {lookback} + {horizon} rows, "
                f"but their borders are {data.borders}; give fewer, for example "
                "--model 'forecast(lookback=24, horizon=12)'"
            )

    def count(self, split: str) -> int:
        """The number of windows of a split."""
        return len(self.starts.get(split, ()))

    def batch(self, split: str, rows: Int[Tensor, "b"]) -> Batch:
        """Some windows, and the rows that follow them."""
        start = rows + self.starts[split].start
        seen = self.values[start[:, None] + torch.arange(-self.lookback, 0)]
        return Batch((seen,), self.values[start[:, None] + torch.arange(self.horizon)])

    def losses(self, output: Tensor, target: Tensor) -> Float[Tensor, "b"]:
        """Mean square error of a window."""
        return (output.float() - target).square().flatten(1).mean(-1)

    scores = losses
