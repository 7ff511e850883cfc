"""A task in which attention must be off almost everywhere: fetch a word when asked, else nothing.

One token of a sequence, the asker, must return the word of the token that answers; all others must
return zeros. A head can be off in two ways: by a sink, the first token, whose value may be zero; or
by looking at itself, because what a token knows of itself the skip can take away again.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.lab.study import Context, Result
from bistoch.nn import Attention

# flags of a token besides its word: first, asker, answer
FLAGS = 3


@dataclass(frozen=True)
class TaskShape:
    """The sizes of the task, of its network and of its training."""

    words: int = 4
    length: int = 10
    dim: int = 32
    heads: int = 1
    steps: int = 1000
    batch: int = 64
    rate: float = 1e-2


class Lookup(nn.Module):
    """Attention beside a skip, and a linear readout: nothing that could clean up after attention.

    >>> shape = TaskShape()
    >>> tokens, wanted = draw_sequences(shape, 5, torch.Generator().manual_seed(0))
    >>> Lookup(shape, "softmax")(tokens).shape, wanted.shape
    (torch.Size([5, 10, 4]), torch.Size([5, 10, 4]))
    """

    def __init__(self, shape: TaskShape, operator: str):
        super().__init__()
        self.embed = nn.Linear(shape.words + FLAGS, shape.dim)
        self.positions = nn.Parameter(0.5 * torch.randn(shape.length, shape.dim))
        self.attention = Attention(shape.dim, shape.heads, operator=operator)
        self.read = nn.Linear(shape.dim, shape.words)

    def forward(self, tokens: Float[Tensor, "b n t"]) -> Float[Tensor, "b n words"]:
        """What every token returns."""
        x = self.embed(tokens) + self.positions
        return self.read(x + self.attention(x))


def draw_sequences(
    shape: TaskShape, count: int, generator: torch.Generator
) -> tuple[Float[Tensor, "b n t"], Float[Tensor, "b n words"]]:
    """Sequences of words with flags, and what every token must return."""
    words = torch.randint(shape.words, (count, shape.length), generator=generator)
    said = nn.functional.one_hot(words, shape.words).float()
    # the first token says nothing
    said[:, 0] = 0
    order = torch.rand(count, shape.length - 1, generator=generator).argsort(-1) + 1
    asker, answer = order[:, :1], order[:, 1:2]
    flags = torch.zeros(count, shape.length, FLAGS)
    flags[:, 0, 0] = 1
    flags[..., 1].scatter_(1, asker, 1)
    flags[..., 2].scatter_(1, answer, 1)
    fetched = said.gather(1, answer[..., None].expand(-1, -1, shape.words))
    wanted = flags[..., 1:2] * fetched
    return torch.cat([said, flags], -1), wanted


def trained_lookup(shape: TaskShape, operator: str, context: Context) -> tuple[Lookup, Result]:
    """A trained network, and the share of the wanted result that it explains."""

    def train(network: Lookup) -> dict[str, float]:
        _train(network, shape, torch.Generator().manual_seed(context.seed))
        return {"explained": _explained(network.eval(), shape)}

    configuration = {"shape": shape, "operator": operator}
    return context.network("lookup", configuration, lambda: Lookup(shape, operator), train)


def _train(network: Lookup, shape: TaskShape, generator: torch.Generator) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=shape.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, shape.rate, total_steps=shape.steps + 1
    )
    for _ in range(shape.steps):
        tokens, wanted = draw_sequences(shape, shape.batch, generator)
        # the asker weighs as much as all others together, or zeros would be learned first
        weight = 1 + (shape.length - 2) * tokens[..., -2]
        loss = ((network(tokens) - wanted).square().sum(-1) * weight).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def _explained(network: Lookup, shape: TaskShape) -> float:
    tokens, wanted = draw_sequences(shape, 1000, torch.Generator().manual_seed(12345))
    error = (network(tokens) - wanted).square().sum()
    return 1 - (error / wanted.square().sum()).item()
