"""A mixture of experts, and the other ways to share tokens out among them."""

import math
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bistoch.nn import Router, Routing


class SignBias(Router):
    """A bias that moves by a fixed step towards even loads (DeepSeek, without auxiliary loss)."""

    rate: float = 0.001

    @torch.no_grad()
    def _count(self, logits: Tensor, mask: Tensor | None) -> None:
        load = (logits + self.bias).argmax(-1).flatten().bincount(minlength=self.experts).float()
        self.bias += self.rate * (load.mean() - load).sign()


class QuantileBias(Router):
    """A bias from quantiles in place of the log-sum-exp of potentials: their limit of small eps."""

    def _potentials(
        self, tokens: Float[Tensor, "n experts"], real: Tensor | None
    ) -> Float[Tensor, "experts"]:
        bias, level = self.bias, 1 - self.top_k / self.experts
        for _ in range(self.iters):
            threshold = torch.quantile(tokens + bias, level, dim=1, keepdim=True)
            bias = -torch.quantile(tokens - threshold, level, dim=0)
        return bias - bias.mean()


class AuxiliaryLoss(Router):
    """No bias; a loss pushes the logits towards even loads (Switch Transformer)."""

    factor: float = 0.01

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Routing:
        """The experts of every token; in training the gates bring the gradient of the loss."""
        routing = super().forward(x, mask)
        if not self.training:
            return routing
        likely = self.logits(x).softmax(-1).flatten(0, -2).mean(0)
        share = routing.load / routing.load.sum()
        loss = self.factor * self.experts * (share * likely).sum()
        return routing._replace(gates=cast(Tensor, _Attach.apply(routing.gates, loss)))


class _Attach(torch.autograd.Function):
    """Leaves a tensor as it is, and adds a loss to whatever is minimised through it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, loss: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], torch.ones((), device=grads[0].device)


class ExpertChoice(Router):
    """Every expert takes its even share of the batch, the tokens that want it most."""

    def weights(self, x: Float[Tensor, "*b n dim"]) -> Float[Tensor, "tokens experts"]:
        """Gates of all pairs, zero where an expert does not take a token."""
        likely = self.logits(x).softmax(-1).flatten(0, -2)
        most = math.ceil(len(likely) * self.top_k / self.experts)
        taken = likely.topk(most, dim=0).indices
        return likely * torch.zeros_like(likely).scatter(0, taken, 1.0)


class Mixture(nn.Module):
    """MLPs as experts: each token passes those that its router chose, times their gates.

    Args:
        router: who chooses.
        hidden: features inside an expert.
        steps: training steps whose loads are kept.

    >>> layer = Mixture(Router(8, experts=4), hidden=16, steps=3)
    >>> layer(torch.randn(2, 5, 8)).shape, int(layer.loads[0].sum())
    (torch.Size([2, 5, 8]), 10)
    """

    loads: Tensor
    step: Tensor

    def __init__(self, router: Router, hidden: int, steps: int):
        super().__init__()
        count, dim = router.experts, router.dim
        self.router = router
        self.first = nn.Parameter(torch.randn(count, dim, hidden) / math.sqrt(dim))
        self.second = nn.Parameter(torch.randn(count, hidden, dim) / math.sqrt(hidden))
        self.register_buffer("loads", torch.zeros(steps, count, dtype=torch.long))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.load = torch.zeros(count, dtype=torch.long)

    def weights(self, x: Float[Tensor, "*b n dim"]) -> Float[Tensor, "tokens experts"]:
        """Gates of all pairs of a token and an expert, zero where they do not meet."""
        if isinstance(self.router, ExpertChoice):
            return self.router.weights(x)
        routing: Routing = self.router(x)
        gates = routing.gates.flatten(0, -2)
        empty = gates.new_zeros(len(gates), self.router.experts)
        return empty.scatter(1, routing.experts.flatten(0, -2), gates)

    def forward(self, x: Float[Tensor, "*b n dim"]) -> Float[Tensor, "*b n dim"]:
        """The result of the chosen experts for every token."""
        weights, tokens = self.weights(x), x.flatten(0, -2)
        result = torch.zeros_like(tokens)
        for number in range(self.router.experts):
            rows = weights[:, number].nonzero()[:, 0]
            inner = nn.functional.gelu(tokens[rows] @ self.first[number]) @ self.second[number]
            result = result.index_add(0, rows, inner * weights[rows, number, None])
        self.load = (weights > 0).sum(0).detach()
        if self.training and self.step < len(self.loads):
            self.loads[self.step] = self.load
            self.step += 1
        return result.reshape(x.shape)


def overload(loads: Int[Tensor, "*b experts"]) -> Float[Tensor, "*b"]:
    """The largest load over the mean.

    >>> overload(torch.tensor([[1, 3], [2, 2]]))
    tensor([1.5000, 1.0000])
    """
    return loads.amax(-1) / loads.float().mean(-1)


def overflow(loads: Int[Tensor, "*b experts"], capacity: float) -> Float[Tensor, "*b"]:
    """The share of tokens that experts of limited capacity would drop.

    >>> overflow(torch.tensor([6, 2]), 1.25)
    tensor(0.1250)
    """
    total = loads.sum(-1)
    most = torch.ceil(capacity * total / loads.shape[-1])
    return (loads - most[..., None]).clamp_min(0).sum(-1) / total
