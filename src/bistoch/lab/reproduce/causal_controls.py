"""Controls: softmax with a bias of the size of causal balance that cannot balance.

They are for the study alone. None has a gradient through its bias.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bistoch.functional import OPERATORS
from bistoch.nn import OperatorModule


@torch.no_grad()
def biases(
    query: Float[Tensor, "*b n d"],
    key: Float[Tensor, "*b n d"],
    lam: float,
    block: int,
    prior: float = 0.01,
) -> Float[Tensor, "*b n n"]:
    """The bias that causal balance adds to every score; later keys are hidden by it too.

    Written down as a matrix, as short as can be: for the moderate scores of small models.

    >>> query, key = torch.randn(2, 3, 10, 4, generator=torch.Generator().manual_seed(0)).unbind()
    >>> scores = query @ key.mT / 2 + biases(query, key, lam=0.7, block=4)
    >>> plan = OPERATORS["causal_elastic"].plan(query, key, lam=0.7, block=4)
    >>> bool(torch.allclose(scores.softmax(-1), plan, atol=1e-6))
    True
    """
    length = query.shape[-2]
    place = torch.arange(length)
    future = place > place[:, None]
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(future, -torch.inf)
    fair = (~future / (place[:, None] + 1)).to(scores)
    found = torch.zeros_like(scores)
    log_ratio = scores.new_zeros((*scores.shape[:-2], length))
    wanted = scores.new_full((length,), prior)
    received = scores.new_full(log_ratio.shape, prior)
    for first in range(0, length, block):
        rows, last = slice(first, first + block), min(first + block, length)
        bias = lam * log_ratio
        found[..., rows, :] = bias[..., None, :]
        plan = (scores[..., rows, :last] + found[..., rows, :last]).softmax(-1)
        received[..., :last] += plan.sum(-2) * (-bias[..., :last]).exp()
        wanted = wanted + fair[rows].sum(0)
        # keys to come begin where those of this block stand together, but not above
        level = (wanted[first:last].sum() / received[..., first:last].sum(-1)).clamp_max(1)
        received[..., last:] = prior / level[..., None]
        log_ratio = (wanted / received).log()
    return found.masked_fill_(future, -torch.inf)


class _Biased(OperatorModule):
    """Softmax with a bias that is made from queries and keys."""

    def __init__(self, lam: float, block: int):
        super().__init__(OPERATORS["softmax"])
        self.lam, self.block = lam, block

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        """What is added to the scores; minus infinity for later keys."""
        raise NotImplementedError

    def forward(self, query, key, value, *, mask=None, query_mask=None, key_mask=None):
        """As every operator; the mask that hides later keys is part of the bias."""
        return self.row.attention(query, key, value, mask=self.bias(query, key))

    def plan(self, query, key, *, mask=None, query_mask=None, key_mask=None):
        """The plan with which `forward` weighs the values."""
        return self.row.plan(query, key, mask=self.bias(query, key))


class BorrowedBias(_Biased):
    """Softmax with the bias of causal balance, of its own text or of a neighbour in the batch.

    Args:
        lam, block: of causal balance.
        shift: how many texts further the bias is taken from; 0 for its own.

    >>> tokens = torch.randn(3, 2, 4, 10, 8).unbind()
    >>> BorrowedBias(1.0, 4, shift=1)(*tokens).shape
    torch.Size([2, 4, 10, 8])
    """

    def __init__(self, lam: float, block: int, shift: int):
        super().__init__(lam, block)
        self.shift = shift

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        """The bias of the text that stands `shift` places before."""
        return biases(query, key, self.lam, self.block).roll(self.shift, 0)


class StreamedRatio(_Biased):
    """Softmax with the plain ratio of what a key should have received to what it did receive.

    What it did receive it received under the bias; new keys have none. This is the first rule that
    comes to mind, and not the one of the library.

    Args:
        lam, block: as for causal balance.
        prior: added to both sides of the ratio.

    >>> tokens = torch.randn(3, 2, 4, 10, 8).unbind()
    >>> StreamedRatio(1.0, 4)(*tokens).shape
    torch.Size([2, 4, 10, 8])
    """

    def __init__(self, lam: float, block: int, prior: float = 0.01):
        super().__init__(lam, block)
        self.prior = prior

    @torch.no_grad()
    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        """The logarithm of the ratio, from the rows of earlier blocks."""
        length = query.shape[-2]
        place = torch.arange(length)
        future = place > place[:, None]
        scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(future, -torch.inf)
        found = torch.zeros_like(scores)
        given, fair = scores.new_zeros((*scores.shape[:-2], length)), scores.new_zeros(length)
        for first in range(0, length, self.block):
            rows = slice(first, first + self.block)
            ratio = ((fair + self.prior) / (given + self.prior)).log()
            found[..., rows, :] = self.lam * ratio[..., None, :] * (place < first)
            given = given + (scores[..., rows, :] + found[..., rows, :]).softmax(-1).sum(-2)
            fair = fair + (~future[rows] / (place[rows, None] + 1)).sum(0)
        return found.masked_fill_(future, -torch.inf)


class AverageBias(_Biased):
    """Softmax with the mean bias that causal balance would give to keys of a distance, per head.

    The mean runs over the batches of training, those before the present one, and is then fixed.

    Args:
        lam, block: of causal balance.
        heads: how many heads there are.
        length: of the texts of training; what lies further away has the bias of the furthest.

    >>> control = AverageBias(1.0, 4, heads=2, length=10)
    >>> tokens = torch.randn(3, 5, 2, 10, 8).unbind()
    >>> control(*tokens).shape, control(*tokens).shape, bool(control.mean.any())
    (torch.Size([5, 2, 10, 8]), torch.Size([5, 2, 10, 8]), True)
    """

    # the share of the mean that a batch leaves as it is: it remembers about a hundred of them
    KEEP = 0.99

    def __init__(self, lam: float, block: int, heads: int, length: int):
        super().__init__(lam, block)
        self.mean = nn.Buffer(torch.zeros(heads, length))
        self.batches = nn.Buffer(torch.zeros(()))

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        """The mean of the batches before; in training this batch is counted afterwards."""
        place = torch.arange(query.shape[-2])
        distance = place[:, None] - place
        known = distance.clamp(0, self.mean.shape[-1] - 1)
        # at the beginning few batches were counted: their weights are made to sum to one
        total = (1 - self.KEEP**self.batches).clamp_min(1e-9)
        found = (self.mean / total)[:, known].masked_fill(distance < 0, -torch.inf)
        if self.training:
            self._count(biases(query, key, self.lam, self.block), distance)
        return found

    @torch.no_grad()
    def _count(self, bias: Float[Tensor, "b h n n"], distance: Tensor) -> None:
        past = distance >= 0
        mean = bias.mean(0)[:, past]
        sums = torch.zeros_like(self.mean).index_add_(1, distance[past], mean)
        pairs = torch.bincount(distance[past], minlength=self.mean.shape[-1]).clamp_min(1)
        self.mean.lerp_(sums / pairs, 1 - self.KEEP)
        self.batches.add_(1)
