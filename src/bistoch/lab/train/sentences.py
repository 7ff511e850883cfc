"""The task of a text classifier: sentences as numbers of words, padded batch by batch."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from bistoch.lab.data import Dataset
from bistoch.lab.text import Vocabulary
from bistoch.lab.train.classify import splits_of
from bistoch.lab.train.task import Batch, class_losses, class_scores

# words that are read of a sentence, and words that are known
LONGEST, KNOWN = 256, 20000


class Sentences:
    """Texts and their classes; the vocabulary is made from the training texts alone.

    Args:
        data: what was loaded.
        hold_out: whether to hold out a tenth of train, always the same, if there is no valid split.
        length: words that are read of a text; what follows is cut off.

    >>> y = np.array([1, 0])
    >>> data = Dataset("mine", "text", ["so good", "bad"], y, ["good"], y[:1], ("no", "yes"))
    >>> task = Sentences(data)
    >>> task.sizes, task.batch("train", torch.tensor([0, 1])).inputs
    ({'classes': 2, 'vocabulary': 5}, (tensor([[4, 3],
            [2, 0]]),))
    """

    score_name, larger_is_better = "accuracy", True
    kind: str = "text"

    def __init__(self, data: Dataset, *, hold_out: bool = False, length: int = LONGEST):
        self.name, self.classes = data.name, data.classes
        self.texts, self.labels = splits_of(data, hold_out)
        self.facts: dict[str, Any] = {"classes": list(data.classes), "length": length}
        self._read(Vocabulary.from_texts(self.texts["train"], size=KNOWN))

    def read_with(self, unit: Literal["word", "character"], pieces: Sequence[str]) -> None:
        """Read all texts with the vocabulary of a trained model instead of their own."""
        self._read(Vocabulary(unit, tuple(pieces)))

    def _read(self, vocabulary: Vocabulary) -> None:
        length = self.facts["length"]
        self.encoded = {
            split: [encode_text(vocabulary, text, length) for text in texts]
            for split, texts in self.texts.items()
        }
        self.sizes = {"classes": len(self.classes), "vocabulary": len(vocabulary)}
        self.facts |= {"unit": vocabulary.unit, "pieces": list(vocabulary.pieces)}

    def count(self, split: str) -> int:
        """The number of texts of a split."""
        return len(self.labels.get(split, ()))

    def batch(self, split: str, rows: Int[Tensor, "b"]) -> Batch:
        """Some texts of a split."""
        texts = [self.encoded[split][row] for row in rows.tolist()]
        return Batch((pad(texts),), torch.from_numpy(self.labels[split][rows.numpy()]))

    losses = staticmethod(class_losses)
    scores = staticmethod(class_scores)


def encode_text(vocabulary: Vocabulary, text: str, length: int) -> Int[np.ndarray, "n"]:
    """A text as numbers; one without any word is one unknown word."""
    numbers = vocabulary.encode_one(text)[:length]
    return numbers if len(numbers) else np.ones(1, np.int64)


def pad(texts: Sequence[np.ndarray]) -> Int[Tensor, "b n"]:
    """Texts of different lengths in one tensor, zeros behind their ends."""
    rows = [torch.from_numpy(text) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
