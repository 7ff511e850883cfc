"""What is inspected: a model in evaluation mode with its samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

# plans of all heads are kept, so batches are small
BATCH_SIZE = 16


class Seen(NamedTuple):
    """What a model did with a batch.

    `plans` are those of every layer, (b, heads, n, m); `states` what went into the first block and
    came out of every block, (b, n, d); `names` are those of the layers.
    """

    plans: list[Tensor]
    states: list[Tensor]
    names: list[str]


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode, and its inputs.

    `samples` are the texts or the names of the images, `batches` the arguments of the model,
    `tokens` the tokens of every sample, `real` says which tokens of a batch are no padding.
    Model and batches are on one device, `real` is on the CPU, as is all that is measured.
    `options` are the resolved options of the model, `about` says what it is, and `own` whether it
    is a run of `bistoch train`. `score` measures the model as it is now, where targets are known.
    """

    name: str
    model: Any
    causal: bool
    samples: list[str]
    batches: list[dict[str, Tensor]]
    real: list[Tensor]
    tokens: list[list[str]]
    notes: list[str]
    options: Mapping[str, object] = field(default_factory=dict)
    about: str = ""
    own: bool = False
    score: Callable[[], dict[str, float]] | None = None

    def key_names(self, sample: int, count: int) -> list[str]:
        """Names of the keys or queries of a layer: those of the tokens, if these are what it sees.

        >>> subject = Subject("", None, False, [], [], [], [["a", "cat"]], [])
        >>> subject.key_names(0, 2), subject.key_names(0, 3)
        (['a', 'cat'], ['key 1', 'key 2', 'key 3'])
        """
        tokens = self.tokens[sample]
        return tokens if len(tokens) == count else [f"key {place + 1}" for place in range(count)]

    def place(self, sample: int) -> tuple[int, int]:
        """The batch of a sample, and its row there."""
        for number, batch in enumerate(self.batches):
            size = len(next(iter(batch.values())))
            if sample < size:
                return number, sample
            sample -= size
        raise IndexError(sample)
