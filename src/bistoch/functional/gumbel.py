"""Random plans near a permutation: balanced scores with Gumbel noise."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional.elastic.api import balance_scores
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.pose import BalanceOptions, ScoreOptions, working_dtype
from bistoch.functional.precision import full_precision


@full_precision
def gumbel_balance(
    scores: Float[Tensor, "*b n m"],
    *,
    generator: torch.Generator | None = None,
    noise: float = 1.0,
    lam: Option = 1.0,
    eps: Option = 1.0,
    omega: Option | None = None,
    iters: int = 20,
    tol: float | None = None,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """A random balanced plan: `balance` of scores with Gumbel noise, differentiable in the scores.

        P = balance((scores + noise * G) / eps),   G_ij = -log(-log(U_ij))

    As eps -> 0 the plan is a random permutation; better scores make it likelier.

    Args:
        scores: score matrices.
        generator: where the noise comes from; the same generator state gives the same plan.
        noise: size of the noise, 0 for none.
        other arguments: those of `balance`.

    >>> import torch, bistoch
    >>> scores, seed = torch.zeros(3, 3), lambda: torch.Generator().manual_seed(0)
    >>> first, second = (bistoch.gumbel_balance(scores, generator=seed()) for _ in range(2))
    >>> bool(torch.equal(first, second))
    True

    Reference: Mena, Belanger, Linderman, Snoek, Gumbel-Sinkhorn, ICLR 2018.
    """
    operator = "gumbel_balance"
    inputs.check_floating(operator, "scores", scores, axes="(*b, n, m)", rank=2)
    inputs.check_noise(operator, noise)
    inputs.check_generator(operator, generator, scores.device)
    # in float32 at least: half precision cannot tell uniform numbers near one apart
    work = scores.to(working_dtype(scores.dtype))
    exponential = torch.empty_like(work).exponential_(generator=generator)
    work = work - noise * exponential.log()
    pairs = ScoreOptions(eps, None, mask, query_mask, key_mask)
    balance = BalanceOptions(lam, omega, iters, tol, column_mass)
    plan = balance_scores(operator, work, pairs, balance, backend)
    return plan.to(scores.dtype)
