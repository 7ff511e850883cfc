"""Soft codes of samples over prototypes, the targets of SwAV and DINO, without overflow."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._nonfinite import show
from bistoch.functional.elastic.api import balance_scores
from bistoch.functional.elastic.reference import logsumexp
from bistoch.functional.elastic.scores import over_eps
from bistoch.functional.inputs import Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions
from bistoch.functional.precision import full_precision


@full_precision
def prototype_codes(
    scores: Float[Tensor, "*b n m"],
    *,
    eps: Option = 0.05,
    lam: Option = 1.0,
    iters: int = 3,
    query_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """Codes of samples over prototypes: rows sum to one, columns lean to equal mass.

        P = softmax_row(S + g),   S = scores / eps
        g = lam (log b - LSE_i(S + f)),   f = -LSE_j(S + g),   `iters` times, at first with f = 0

    With `lam = 1` this is the Sinkhorn-Knopp of SwAV and DINOv2, which starts on the prototypes, at
    every number of iterations; in the log domain, so that no score overflows.

    Args:
        scores: similarity of every sample to every prototype, as it leaves the teacher.
        eps: temperature of the codes, as for `balance`.
        lam: elasticity in [0, 1]: 1 gives every prototype the same share of the samples, less lets
            the shares follow the scores, for classes of uneven size; 0 is softmax.
        iters: column steps, each followed by a row step; 0 is softmax.
        query_mask: True where the sample is real; the codes of others are zero.
        column_mass: shares of the prototypes, where a prior of the classes is known.
        backend: as for `elastic_attention`.

    Codes are targets, so call it under `torch.no_grad()`; the gradient is there and exact.

    >>> import torch, bistoch
    >>> codes = bistoch.prototype_codes(torch.randn(256, 10), eps=0.5, iters=100)
    >>> bool((codes.mean(0) - 0.1).abs().max() < 0.01)
    True

    Reference: Caron et al., Unsupervised learning by contrasting cluster assignments, 2020.
    """
    operator = "prototype_codes"
    inputs.check_floating(operator, "scores", scores, axes="(*b, n, m)", rank=2)
    batch, (samples, prototypes) = scores.shape[:-2], scores.shape[-2:]
    inputs.check_eps(operator, eps, batch, scores.device)
    inputs.check_lam(operator, lam, batch, scores.device)
    inputs.check_count(operator, "iters", iters)
    if query_mask is not None:
        shape = (*batch, samples)
        inputs.check_padding(operator, "query_mask", query_mask, shape, scores.device)
    if column_mass is not None:
        shape = (*batch, prototypes)
        inputs.check_column_mass(operator, column_mass, shape, scores.device)
    work = over_eps(scores, eps)
    start = None
    if iters:
        total = _log_column_sums(work, query_mask)
        wanted = 0.0 if column_mass is None else column_mass.to(work.dtype).log()
        # scores that are not finite are shown by the plan; a column without samples stays as it is
        first = torch.where(total.isfinite(), wanted - total, 0)
        start = first * (lam.to(work.dtype)[..., None] if isinstance(lam, Tensor) else lam)
    pairs = ScoreOptions(1.0, None, None, query_mask, None)
    options = BalanceOptions(lam, None, max(iters - 1, 0), None, column_mass, start=start)
    codes = balance_scores(operator, work, pairs, options, backend).to(scores.dtype)
    if iters != 1:
        return codes
    # columns have moved before `balance`, so that a broken one breaks all rows
    broken = (total.isnan() | (total == torch.inf)).any(-1, keepdim=True)
    return show(codes, broken if query_mask is None else broken & query_mask)


def _log_column_sums(
    scores: Float[Tensor, "*b n m"], query_mask: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*b m"]:
    """The one sum over samples that is not made by `balance`."""
    if query_mask is not None:
        scores = scores.masked_fill(~query_mask[..., None], -torch.inf)
    return logsumexp(scores, -2)
