"""Tokens to experts: balanced by potentials of past batches, so that no token sees a later one."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bistoch.functional import inputs
from bistoch.functional.elastic import balance_potentials
from bistoch.functional.precision import no_autocast


class Routing(NamedTuple):
    """Where tokens go.

    Attributes:
        experts: the experts of every token, the best first.
        gates: their weights, from the logits without the bias; zero where dropped.
        load: how many tokens chose each expert, before any are dropped.
        dropped: True where the expert of a token was full, or the token is padding.
    """

    experts: Int[Tensor, "*b n k"]
    gates: Float[Tensor, "*b n k"]
    load: Int[Tensor, "experts"]
    dropped: Bool[Tensor, "*b n k"]


class Router(nn.Module):
    """Choose `top_k` experts for every token, evenly, by a bias computed from past batches.

        experts = top_k(logits + bias),   gates = softmax(logits) at these,   logits = W x
        bias <- decay bias + (1 - decay) eps g,   g the column potentials of tokens over experts

    Only training changes the bias, after the tokens of a batch are routed: the choice for a token
    depends on that token and on earlier batches, so decoding chooses as training does. The bias is
    in the state dict. Its first values are plain averages, until the batches outweigh `decay`.

    With `top_k > 1` rows of the plan have mass `top_k`, of which no expert may get more than one.
    The entropic plan has no such bound, so every token counts `top_k` times, the second time
    without the expert it chose first, and so on.

    Args:
        dim: features of a token.
        experts: how many there are.
        top_k: experts of a token.
        lam: elasticity in [0, 1]: 1 gives all experts the same load, 0 has no bias.
        eps: temperature of the potentials; where it is small against differences of logits, equal
            columns of the plan are equal loads.
        decay: of the average over batches, in [0, 1).
        iters: iterations per batch, from the potentials so far.
        capacity: in training an expert takes at most this times its even share; later tokens are
            dropped. None drops nothing, and neither does evaluation.

    Gates of one token do not sum to one; divide by their sum if they should. Logits are computed in
    float32. A forward pass in training mode counts as a batch, so do not checkpoint activations
    around a router.

    >>> import torch, bistoch
    >>> router = bistoch.nn.Router(16, experts=8, capacity=1.25)
    >>> routing = router(torch.randn(2, 64, 16))
    >>> routing.experts.shape, routing.gates.shape, int(routing.load.sum())
    (torch.Size([2, 64, 1]), torch.Size([2, 64, 1]), 128)
    >>> bool(router.bias.any())
    True

    Reference: Wang, Gao, Zhao, Sun, Dai, Auxiliary-loss-free load balancing, 2024, for the bias.
    """

    bias: Tensor
    batches: Tensor

    def __init__(
        self,
        dim: int,
        experts: int,
        top_k: int = 1,
        *,
        lam: float = 1.0,
        eps: float = 0.1,
        decay: float = 0.7,
        iters: int = 10,
        capacity: float | None = None,
    ) -> None:
        super().__init__()
        inputs.check_count("Router", "dim", dim, least=1)
        inputs.check_count("Router", "experts", experts, least=1)
        inputs.check_top_k("Router", top_k, experts)
        inputs.check_lam("Router", lam, ())
        inputs.check_eps("Router", eps, ())
        inputs.check_decay("Router", decay)
        inputs.check_count("Router", "iters", iters)
        inputs.check_capacity_factor("Router", capacity)
        self.dim, self.experts, self.top_k = dim, experts, top_k
        self.lam, self.eps, self.decay, self.iters = lam, eps, decay, iters
        self.capacity = capacity
        self.weight = nn.Parameter(torch.randn(experts, dim) / math.sqrt(dim))
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(
        self, x: Float[Tensor, "*b n dim"], mask: Bool[Tensor, "*b n"] | None = None
    ) -> Routing:
        """The experts of every token; `mask` is True where a token is real."""
        inputs.check_floating("Router", "x", x, axes="(*b, n, dim)", rank=2)
        inputs.check_width("Router", "x", x, self.dim)
        inputs.check_device("Router", "x", x, self.weight.device)
        if mask is not None:
            inputs.check_padding("Router", "mask", mask, x.shape[:-1], x.device)
            mask = mask.expand(x.shape[:-1])
        logits = self.logits(x)
        chosen = (logits.detach() + self.bias.to(logits.dtype)).topk(self.top_k).indices
        gates = logits.softmax(-1).gather(-1, chosen)
        taken = nn.functional.one_hot(chosen, self.experts)
        dropped = torch.zeros_like(chosen, dtype=torch.bool)
        if mask is not None:
            dropped = ~mask[..., None].expand_as(chosen)
            taken = taken * mask[..., None, None]
        if self.training:
            if self.capacity is not None:
                share = taken.sum() / self.experts
                dropped = dropped | _beyond(taken, torch.ceil(self.capacity * share))
            self._count(logits.detach(), mask)
        return Routing(
            experts=chosen,
            gates=gates.masked_fill(dropped, 0).to(x.dtype),
            load=taken.flatten(0, -2).sum(0),
            dropped=dropped,
        )

    def logits(self, x: Float[Tensor, "*b n dim"]) -> Float[Tensor, "*b n experts"]:
        """The scores of every token for every expert, without the bias, in float32 at least."""
        work = torch.promote_types(self.weight.dtype, torch.float32)
        with no_autocast(x.device):
            return nn.functional.linear(x.to(work), self.weight.to(work))

    @torch.no_grad()
    def _count(self, logits: Tensor, mask: Tensor | None) -> None:
        """Add a batch to the average of potentials."""
        real = None if mask is None else mask.flatten()
        found = self._potentials(logits.flatten(0, -2), real).to(self.bias.dtype)
        # a batch of padding, or one with a NaN, must not spoil the average for ever
        counts = found.isfinite().all()
        self.batches += counts
        weight = (1 / self.batches.clamp_min(1)).clamp_min(1 - self.decay).to(self.bias.dtype)
        self.bias += torch.where(counts, weight * (found - self.bias), 0)

    def _potentials(
        self, tokens: Float[Tensor, "n experts"], real: Bool[Tensor, "n"] | None
    ) -> Float[Tensor, "experts"]:
        """The column potentials of a batch, in units of logits and with mean zero."""
        bias, rounds, mask = self.bias.to(tokens.dtype), self.top_k, None
        if rounds > 1:
            chosen = (tokens + bias).topk(rounds).indices.mT
            taken = nn.functional.one_hot(chosen, self.experts)
            # what was chosen in the rounds before
            mask = (taken.cumsum(0) == taken).flatten(0, 1)
        column = balance_potentials(
            tokens.repeat(rounds, 1), lam=self.lam, eps=self.eps, iters=self.iters,
            start=bias / self.eps, mask=mask,
            query_mask=None if real is None else real.repeat(rounds),
        ).column  # fmt: skip
        return self.eps * (column - column.mean())

    def extra_repr(self) -> str:
        """The options, as they were given."""
        return (
            f"{self.dim}, experts={self.experts}, top_k={self.top_k}, lam={self.lam}, "
            f"eps={self.eps}, decay={self.decay}, iters={self.iters}, capacity={self.capacity}"
        )


def _beyond(taken: Int[Tensor, "*b n k experts"], most: Tensor) -> Bool[Tensor, "*b n k"]:
    """Which choices come too late: an expert takes tokens by position, then by sequence.

    So no token is dropped because of a later one, in any sequence of the batch.
    """
    # (n, *b, k, experts): earlier positions of all sequences first
    by_position = taken.movedim(-3, 0)
    number = by_position.flatten(0, -2).cumsum(0).reshape(by_position.shape)
    late = ((number > most) & (by_position > 0)).any(-1)
    return late.movedim(0, -2)
