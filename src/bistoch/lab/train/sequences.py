"""Tasks without classes: the next character of a text, the next rows of a time series."""

import math
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from bistoch.lab.data import Corpus, Series
from bistoch.lab.data.read_series import FEWEST, usual_borders
from bistoch.lab.text import Vocabulary
from bistoch.lab.train.task import Batch

# characters of a window by default
WINDOW = 128


class NextCharacter:
    """Adjacent windows of a text; the score is bits per character (or byte).

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
        train = characters(data.train, as_bytes)
        self.use_vocabulary(Vocabulary.from_texts([train], unit="character"), as_bytes=as_bytes)
        if self.count("train") < 1 or self.count("test") < 1:
            raise ValueError(
                f"{data.name}: train and test must have more than {length} characters, the length "
                f"of a window, but they have {len(self.ids['train'])} and {len(self.ids['test'])}; "
                "give a smaller length"
            )

    def use_vocabulary(self, vocabulary: Vocabulary, *, as_bytes: bool) -> None:
        """Encode all texts with a vocabulary: their own, or that of a trained model."""
        self.ids = {
            split: torch.from_numpy(vocabulary.encode_one(characters(text, as_bytes)))
            for split, text in self.texts.items()
        }
        self.sizes = {"vocabulary": len(vocabulary)}
        self.facts: dict[str, Any] = {"length": self.length, "tokens": list(vocabulary.tokens)}
        if as_bytes:
            self.facts["bytes"] = True

    def count(self, split: str) -> int:
        """The number of windows of a split."""
        return max(len(self.ids[split]) - 1, 0) // self.length

    def batch(self, split: str, rows: Int[Tensor, "b"]) -> Batch:
        """Some windows of a split, and the character after every character."""
        positions = rows[:, None] * self.length + torch.arange(self.length)
        return Batch((self.ids[split][positions],), self.ids[split][positions + 1])

    def losses(
        self, output: Float[Tensor, "b n v"], target: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b"]:
        """Mean cross-entropy of a window."""
        return functional.cross_entropy(output.float().mT, target, reduction="none").mean(-1)

    def scores(
        self, output: Float[Tensor, "b n v"], target: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b"]:
        """Bits per character."""
        return self.losses(output, target) / math.log(2)


def characters(text: str | bytes, as_bytes: bool) -> str:
    """A text as characters, or as bytes with one character for each.

    >>> characters("é", as_bytes=False), len(characters("é", as_bytes=True))
    ('é', 2)
    """
    if as_bytes:
        return (text.encode() if isinstance(text, str) else text).decode("latin-1")
    return text if isinstance(text, str) else text.decode(errors="replace")


def rows_needed(lookback: int, horizon: int, *, valid: bool) -> int:
    """How many rows hold a window in train, and a horizon in test, and perhaps one in valid.

    >>> rows_needed(96, 96, valid=False), rows_needed(96, 96, valid=True)
    (480, 944)
    """
    rows = max(lookback + horizon, FEWEST)
    while True:
        train, validation, _ = usual_borders(rows)
        least = min(rows - validation, validation - train if valid else rows)
        if train >= lookback + horizon and least >= horizon:
            return rows
        rows += 1


class Forecast:
    """Windows of a series, standardised by train; the score is the mean squared error.

    Args:
        data: what was loaded.
        lookback, horizon: rows of the input and rows of the target.
        loss: what training minimises: "mse", or "weighted_l1", the absolute error where step k of
            the horizon, counted from one, weighs 1 / sqrt(k).

    >>> values = np.arange(60.0).reshape(30, 2)
    >>> data = Series("line", "series", values, np.arange(30), ("a", "b"), "a", (18, 24, 30))
    >>> task = Forecast(data, lookback=4, horizon=2)
    >>> task.count("train"), task.count("test"), task.batch("test", torch.tensor([0])).target.shape
    (13, 5, torch.Size([1, 2, 2]))
    """

    score_name, larger_is_better, kind = "mse", False, "series"

    def __init__(
        self,
        data: Series,
        *,
        lookback: int,
        horizon: int,
        loss: Literal["mse", "weighted_l1"] = "mse",
    ):
        self.loss = loss
        self.name, self.lookback, self.horizon = data.name, lookback, horizon
        mean, deviation = data.train.mean(0), data.train.std(0)
        scaled = (data.values - mean) / np.where(deviation > 0, deviation, 1)
        self.values = torch.from_numpy(scaled).float()
        self.train_rows = data.borders[0]
        # a target lies wholly in its split; the rows it looks back at may lie before it
        begins = (lookback, *data.borders[:2])
        self.starts = {
            split: range(begin, end - horizon + 1)
            for split, begin, end in zip(
                ("train", "valid", "test"), begins, data.borders, strict=True
            )
        }
        self.sizes = {"channels": data.values.shape[1]}
        self.facts: dict[str, Any] = {
            "columns": list(data.columns), "mean": mean.tolist(), "deviation": deviation.tolist(),
        }  # fmt: skip
        self.source, self.rows = data.source or data.name, data.borders[2]
        if self.count("train") < 1 or self.count("test") < 1 or self.train_rows <= horizon:
            raise ValueError(self.too_short(valid=False))

    def too_short(self, *, valid: bool) -> str:
        """The sentence for too few rows, with or without a split for validation."""
        needed = rows_needed(self.lookback, self.horizon, valid=valid)
        return (
            f"{self.source}: windows of {self.lookback} + {self.horizon} rows (lookback and "
            f"horizon) need at least {needed} rows, of which 70 % are for training, 10 % for "
            f"validation and 20 % for the test, but there are {self.rows}; give more rows or "
            f"smaller windows, for example --model 'forecast(lookback={max(2, self.rows // 6)}, "
            f"horizon={max(1, self.rows // 12)})'"
        )

    def count(self, split: str) -> int:
        """The number of windows of a split."""
        return len(self.starts.get(split, ()))

    def batch(self, split: str, rows: Int[Tensor, "b"]) -> Batch:
        """Some windows, and the rows that follow them."""
        start = (rows + self.starts[split].start)[:, None]
        inputs = self.values[start + torch.arange(-self.lookback, 0)]
        return Batch((inputs,), self.values[start + torch.arange(self.horizon)])

    def losses(self, output: Tensor, target: Tensor) -> Float[Tensor, "b"]:
        """Mean squared error of a window, or its absolute error with weights."""
        if self.loss == "mse":
            return self.scores(output, target)
        weights = torch.arange(1.0, self.horizon + 1, device=target.device).rsqrt()
        return ((output.float() - target).abs() * weights[:, None]).flatten(1).mean(-1)

    def scores(self, output: Tensor, target: Tensor) -> Float[Tensor, "b"]:
        """Mean squared error of a window."""
        return (output.float() - target).square().flatten(1).mean(-1)
