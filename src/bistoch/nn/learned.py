"""Operators that own what they learn beside the tokens: a sink per head, a matrix of weights."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from bistoch.functional import OPERATORS, inputs
from bistoch.functional.inputs import Option
from bistoch.nn.heads import check_heads, one_per_head
from bistoch.nn.operators import OperatorModule
from bistoch.nn.unit_interval import clamp_to_unit


class Sink(OperatorModule):
    """Softmax beside a sink whose logit may be learned per head.

    Args:
        logit: score of the sink; with `learn="head"` the value to start from. 0 is "softmax plus
            one".
        eps, scale, backend: as for `bistoch.sink_attention`.
        learn: "none", or "head" for a parameter `logit` with one entry per head.
        heads: how many heads there are, for `learn="head"`; tokens are then (..., heads, n, d).

    >>> import torch
    >>> sink = Sink(learn="head", heads=8)
    >>> sink
    sink(learn='head', heads=8)
    >>> q, k, v = torch.randn(3, 2, 8, 5, 4).unbind()
    >>> sink(q, k, v).shape, sink.logit.shape
    (torch.Size([2, 8, 5, 4]), torch.Size([8]))
    """

    logit: float | Tensor

    def __init__(
        self,
        logit: Option = 0.0,
        eps: Option = 1.0,
        scale: float | None = None,
        backend: str = "auto",
        learn: Literal["none", "head"] = "none",
        heads: int | None = None,
    ) -> None:
        inputs.check_choice("Sink", "learn", learn, ("none", "head"))
        if learn == "head":
            heads = check_heads("Sink", heads)
            inputs.check_logit("Sink", "logit", logit, (heads,))
            logit = nn.Parameter(one_per_head(logit, heads))
        super().__init__(
            OPERATORS["sink"], logit=logit, eps=eps, scale=scale, backend=backend
        )  # fmt: skip
        self.learn = learn
        self.heads = heads if learn == "head" else None

    def _written(self) -> dict[str, Any]:
        written = super()._written()
        if self.learn == "head":
            # a learned logit is shown by the words that make it
            del written["logit"]
            written |= {"learn": self.learn, "heads": self.heads}
        return written


class Mixing(OperatorModule):
    """Mixing by a learned matrix that does not look at the tokens: the NormLin of OLinear.

        P = rows of softplus(weight), each divided by its sum; balanced as far as lam says

    Called with queries and keys like every operator, of which it uses only the number. In a layer
    of its own it needs no projections of them: `mixing(x, x, value(x))`.

    Args:
        tokens: how many queries; None owns no weight and keeps the fixed one of `mixing_plan`.
        keys: how many keys, by default as many.
        lam, iters, tol, backend: as for `bistoch.mixing_attention`.
        learn_lam: whether lam is a parameter that starts from `lam`: one, or one per head with
            `learn="head"`. It is used clamped to [0, 1]; at an end it receives the gradient only if
            that leads back inside.
        learn: "shared" for one matrix for all heads, or "head" for one per head.
        heads: how many heads there are, for `learn="head"`; tokens are then (..., heads, n, d).
        generator: where the first weight, I + N(0, 1), comes from.

    >>> import torch
    >>> mixing = Mixing(tokens=5, lam=1.0)
    >>> mixing
    mixing(tokens=5, lam=1.0)
    >>> x = torch.randn(2, 5, 4)
    >>> mixing(x, x, x).shape, mixing.weight.shape
    (torch.Size([2, 5, 4]), torch.Size([5, 5]))
    """

    weight: Tensor | None
    lam: float | Tensor

    def __init__(
        self,
        tokens: int | None = None,
        keys: int | None = None,
        lam: Option = 0.0,
        iters: int = 10,
        tol: float | None = None,
        backend: str = "auto",
        learn: Literal["shared", "head"] = "shared",
        heads: int | None = None,
        generator: torch.Generator | None = None,
        learn_lam: bool = False,
    ) -> None:
        inputs.check_flag("Mixing", "learn_lam", learn_lam)
        inputs.check_choice("Mixing", "learn", learn, ("shared", "head"))
        weight = None
        each: tuple[int, ...] = ()
        for name, count in (("tokens", tokens), ("keys", keys)):
            if count is not None:
                inputs.check_count("Mixing", name, count, least=1)
        inputs.check_generator("Mixing", generator, torch.get_default_device())
        if learn == "head":
            each = (check_heads("Mixing", heads),)
        if tokens is None and (keys is not None or each):
            raise ValueError(
                "Mixing: keys and learn='head' describe a weight, but without tokens there is "
                "none; write for example Mixing(tokens=96)"
            )
        if tokens is not None:
            weight = nn.Parameter(torch.empty(*each, tokens, tokens if keys is None else keys))
        if learn_lam:
            inputs.check_lam("Mixing", lam, each)
            lam = nn.Parameter(torch.ones(each) * lam)
        super().__init__(
            OPERATORS["mixing"], weight=weight, lam=lam, iters=iters, tol=tol, backend=backend
        )
        self.tokens, self.keys, self.learn = tokens, keys, learn
        self.heads = heads if learn == "head" else None
        self.learn_lam = learn_lam
        self.reset_parameters(generator)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start anew from I + N(0, 1), the published beginning."""
        if self.weight is not None:
            self.weight.normal_(generator=generator)
            self.weight += torch.eye(*self.weight.shape[-2:]).to(self.weight)

    def options(self) -> dict[str, Any]:
        """The options of the next call, by name; a learned lam as it is used, inside [0, 1]."""
        options = super().options()
        if self.learn_lam:
            options["lam"] = clamp_to_unit(options["lam"])
        return options

    def _written(self) -> dict[str, Any]:
        # the weight is shown by the words that make it
        made = {"tokens": self.tokens, "keys": self.keys}
        made = {name: count for name, count in made.items() if count is not None}
        own = {"weight", "lam"} if self.learn_lam else {"weight"}
        written = {k: v for k, v in super()._written().items() if k not in own}
        each = {"learn": "head", "heads": self.heads} if self.learn == "head" else {}
        return made | written | each | ({"learn_lam": True} if self.learn_lam else {})
