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

    Codes are targets, so call it under `torch.no_grad()`; the gradient is there and exact. Samples
    that are spread over processes are what `bistoch.distributed.prototype_codes` is for.

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
    pairs = ScoreOptions(eps, None, None, query_mask, None)
    return find_codes(
        operator, scores, pairs, BalanceOptions(lam, None, iters, None, column_mass), backend
    )


def find_codes(
    operator: str,
    scores: Float[Tensor, "*b n m"],
    pairs: ScoreOptions,
    options: BalanceOptions,
    backend: str,
) -> Float[Tensor, "*b n m"]:
    """The codes for options that were checked; `options.shards` may hold the other samples."""
    query_mask, lam = pairs.query_mask, options.lam
    iters, shards = options.iters, options.shards
    work = over_eps(scores, pairs.eps)
    start = None
    if iters:
        total = _log_column_sums(work, query_mask)
        broken = total.isnan() | (total == torch.inf)
        if shards is not None:
            # what is not finite is shown by the plan, and would spoil the largest over processes
            total = shards.logsumexp(total.masked_fill(broken, -torch.inf))
            broken = shards.max(broken.to(work.dtype)) > 0
        mass = options.column_mass
        wanted = 0.0 if mass is None else mass.to(work.dtype).log()
        # scores that are not finite are shown by the plan; a column without samples stays as it is
        first = torch.where(total.isfinite(), wanted - total, 0)
        start = first * (lam.to(work.dtype)[..., None] if isinstance(lam, Tensor) else lam)
    pairs = pairs._replace(eps=1.0)
    options = options._replace(iters=max(iters - 1, 0), start=start)
    codes = balance_scores(operator, work, pairs, options, backend).to(scores.dtype)
    if iters != 1:
        return codes
    # columns have moved before `balance`, so that a broken one breaks all rows
    spoiled = broken.any(-1, keepdim=True)
    return show(codes, spoiled if query_mask is None else spoiled & query_mask)


def _log_column_sums(
    scores: Float[Tensor, "*b n m"], query_mask: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*b m"]:
    """The one sum over samples that is not made by `balance`."""
    if query_mask is not None:
        scores = scores.masked_fill(~query_mask[..., None], -torch.inf)
    return logsumexp(scores, -2)
