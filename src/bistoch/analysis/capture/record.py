"""What a capture holds, and the budget that bounds it."""

from collections import Counter
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class IncompleteCaptureWarning(UserWarning):
    """Something that happened in a model was not recorded."""


class CapturedPlan(NamedTuple):
    """One call of attention.

    `name` is that of the module in the model, `call` how often it had attended before. `source`
    says how the plan is known: "operator" (of bistoch), "multihead" (`nn.MultiheadAttention`),
    "sdpa" (a call of `scaled_dot_product_attention`) or "eager" (the matrix code of transformers).
    Plan and values are copies on the CPU; the plan is the one before dropout.
    """

    name: str
    call: int
    source: str
    plan: Float[Tensor, "*b n m"]
    value: Float[Tensor, "*b m e"] | None


class CapturedState(NamedTuple):
    """What a module returned, or (with a name that ends in `.input`) what the first block got."""

    name: str
    call: int
    state: Float[Tensor, "*b n d"]


class Missed(NamedTuple):
    """What was not recorded, and why."""

    name: str
    call: int
    reason: str


class Captured:
    """All that was recorded: `plans`, `states`, what was `missed`, and the bytes `used`.

    Args:
        budget: how many bytes to keep at most.
        problems: how many sequences of a batch to keep at most, evenly spread; None keeps all.
    """

    def __init__(self, budget: int, problems: int | None):
        self.budget, self.problems, self.used = budget, problems, 0
        self.plans: list[CapturedPlan] = []
        self.states: list[CapturedState] = []
        self.missed: list[Missed] = []
        self._calls: Counter[tuple[str, str]] = Counter()

    def sample(self, size: int) -> list[int] | None:
        """Which sequences of a batch are kept, the same for plans and states; None for all.

        >>> Captured(0, 3).sample(9), Captured(0, 3).sample(2)
        ([0, 4, 8], None)
        """
        if self.problems is None or size <= self.problems:
            return None
        if self.problems == 1:
            return [0]
        return [round(i * (size - 1) / (self.problems - 1)) for i in range(self.problems)]

    def count_call(self, kind: str, name: str) -> int:
        """How often this was seen before, counting what was missed."""
        self._calls[kind, name] += 1
        return self._calls[kind, name] - 1

    def has_room(self, name: str, call: int, entries: int) -> bool:
        """Whether so many numbers still fit; if not, that is noted."""
        if self.used + 4 * entries <= self.budget:
            return True
        self.missed.append(Missed(name, call, f"the budget of {self.budget} bytes is used up"))
        return False

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy on the CPU, counted."""
        kept = tensor.detach().to("cpu", copy=True)
        self.used += kept.numel() * kept.element_size()
        return kept

    def sentence(self) -> str:
        """What to warn of."""
        first = self.missed[0]
        return (
            f"capture: {len(self.missed)} records are missing, the first in {first.name!r}: "
            f"{first.reason}; see .missed, raise budget, or lower problems"
        )


def first_tensor(value: object) -> Tensor | None:
    """The hidden states in what a module was given or returned."""
    if isinstance(value, Tensor):
        usable = value.is_floating_point() and value.ndim >= 2
        return value if usable else None
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            if isinstance(item, Tensor):
                found = first_tensor(item)
                if found is not None:
                    return found
    return None


def dense(states: Tensor) -> Tensor:
    """A nested tensor padded with zeros; any other as it is."""
    return torch.nested.to_padded_tensor(states, 0.0) if states.is_nested else states
