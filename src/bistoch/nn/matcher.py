"""Matching of two sets of descriptors, with a learned bin score and temperature."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from bistoch.functional import inputs
from bistoch.functional.inputs import Mask
from bistoch.functional.matching import Match, match


class Matcher(nn.Module):
    """Match two sets in which not every element has a partner; the last layer of a matcher.

        scores = a b^T / sqrt(d),   match(scores, bin_score=bin_score, eps=exp(log_eps))

    Args:
        bin_score: initial score of staying unmatched; a parameter. SuperGlue starts from 1.
        eps: initial temperature; its logarithm is a parameter if `learn_eps`.
        learn_eps: whether the temperature is learned.
        iters, end, threshold, backend: as for `bistoch.match`.

    >>> import torch, bistoch
    >>> matcher = bistoch.nn.Matcher(iters=20)
    >>> a, b = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    >>> found = matcher(a, b)
    >>> found.plan.shape, found.pairs.shape, matcher(scores=a @ b.mT).rows.shape
    (torch.Size([2, 5, 7]), torch.Size([2, 5]), torch.Size([2, 5]))

    Reference: Sarlin, DeTone, Malisiewicz, Rabinovich, SuperGlue, CVPR 2020.
    """

    def __init__(
        self,
        bin_score: float = 1.0,
        eps: float = 1.0,
        *,
        learn_eps: bool = True,
        iters: int = 50,
        end: Literal["rows", "columns"] = "rows",
        threshold: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        inputs.check_finite("Matcher", "bin_score", bin_score, example=1.0)
        inputs.check_finite("Matcher", "eps", eps, example=1.0)
        inputs.check_eps("Matcher", eps, ())
        inputs.check_flag("Matcher", "learn_eps", learn_eps)
        inputs.check_choice("Matcher", "end", end, ("rows", "columns"))
        inputs.check_count("Matcher", "iters", iters, least=1)
        inputs.check_probability("Matcher", "threshold", threshold)
        inputs.check_text("Matcher", "backend", backend, "auto")
        self.bin_score = nn.Parameter(torch.tensor(float(bin_score)))
        self.log_eps = nn.Parameter(torch.tensor(float(eps)).log(), requires_grad=learn_eps)
        self.iters, self.end, self.threshold, self.backend = iters, end, threshold, backend

    @property
    def eps(self) -> Float[Tensor, ""]:
        """The temperature, always positive."""
        return self.log_eps.exp()

    def forward(
        self,
        query: Float[Tensor, "*#b n d"] | None = None,
        key: Float[Tensor, "*#b m d"] | None = None,
        *,
        scores: Float[Tensor, "*b n m"] | None = None,
        mask: Mask | None = None,
        query_mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "..."] | None = None,
    ) -> Match:
        """Match descriptors, or scores that you made yourself.

        Args:
            query, key: the descriptors of either side.
            scores: instead of descriptors.
            mask, query_mask, key_mask: as for `bistoch.match`.
        """
        if scores is not None and not (query is None and key is None):
            raise TypeError(
                "Matcher: scores must be None beside query and key, from which they are made, but "
                "both came; leave one of them out"
            )
        if scores is None:
            if query is None or key is None:
                raise TypeError(
                    "Matcher: query and key must be descriptors of either side, unless there are "
                    "scores, but one of them is None; pass both, or scores=..."
                )
            inputs.check_tokens("Matcher", query, key)
            scores = query @ key.mT / query.shape[-1] ** 0.5
        return match(
            scores, bin_score=self.bin_score, eps=self.eps, iters=self.iters, mask=mask,
            query_mask=query_mask, key_mask=key_mask, threshold=self.threshold, end=self.end,
            backend=self.backend,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The options, and where the parameters are now."""
        return (
            f"bin_score={self.bin_score.item():g}, eps={self.eps.item():g}, iters={self.iters}, "
            f"end={self.end!r}"
        )
