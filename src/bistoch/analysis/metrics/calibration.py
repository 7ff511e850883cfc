"""Whether predicted probabilities can be trusted: calibration, proper scores, unknown samples.

Probabilities are (*b, samples, classes), targets (*b, samples): one number for each set of samples.
Half precision is computed and returned in float32.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional.pose import working_dtype


def negative_log_likelihood(
    probabilities: Float[Tensor, "*b samples classes"], target: Int[Tensor, "*b samples"]
) -> Float[Tensor, "*b"]:
    """The mean of -log p of the right class, in nats: 0 for certain and right, else above.

    Args:
        probabilities: of every class; a probability of zero counts as the smallest normal number.
        target: the right classes.

    >>> negative_log_likelihood(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.3466)
    """
    p, target = _read("negative_log_likelihood", probabilities, target)
    right = p.gather(-1, target[..., None]).squeeze(-1)
    return -right.clamp_min(torch.finfo(p.dtype).tiny).log().mean(-1)


def brier_score(
    probabilities: Float[Tensor, "*b samples classes"], target: Int[Tensor, "*b samples"]
) -> Float[Tensor, "*b"]:
    """The mean squared distance to the right answer: in [0, 2], 0 for certain and right.

        mean over samples of sum_c (p_c - [c = target])^2

    Arguments are those of `negative_log_likelihood`.

    >>> brier_score(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.2500)

    Reference: Brier, Verification of forecasts expressed in terms of probability, 1950.
    """
    p, target = _read("brier_score", probabilities, target)
    right = torch.zeros_like(p).scatter(-1, target[..., None], 1)
    return (p - right).square().sum(-1).mean(-1)


def calibration_error(
    probabilities: Float[Tensor, "*b samples classes"],
    target: Int[Tensor, "*b samples"],
    *,
    bins: int = 15,
) -> Float[Tensor, "*b"]:
    """The expected calibration error (ECE): in [0, 1], 0 if confidence is accuracy in every bin.

        sum over bins of  share of samples * |accuracy - mean confidence|

    Args:
        probabilities, target: as for `negative_log_likelihood`. Confidence is the largest
            probability of a sample.
        bins: equal parts of (0, 1], each with its upper edge.

    >>> calibration_error(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 0, 0, 1]))
    tensor(0.)
    >>> calibration_error(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 1, 1, 1]))
    tensor(0.5000)

    Reference: Guo et al., On calibration of modern neural networks, ICML 2017.
    """
    inputs.check_count("calibration_error", "bins", bins, least=1)
    p, target = _read("calibration_error", probabilities, target)
    confidence, chosen = p.max(-1)
    surplus = confidence - (chosen == target).to(p.dtype)
    place = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    empty = torch.zeros(*p.shape[:-2], bins, dtype=p.dtype, device=p.device)
    return empty.scatter_add(-1, place, surplus).abs().sum(-1) / p.shape[-2]


def predictive_entropy(
    probabilities: Float[Tensor, "*b samples classes"],
) -> Float[Tensor, "*b samples"]:
    """The entropy of every prediction, in nats: 0 if certain, the log of the classes if not at all.

    Args:
        probabilities: of every class.

    >>> predictive_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.6931, 0.0000])
    """
    inputs.check_probabilities("predictive_entropy", probabilities)
    p = probabilities.to(working_dtype(probabilities.dtype))
    return 0 - (p * torch.where(p > 0, p, 1).log()).sum(-1)


def auroc(inside: Float[Tensor, "*b n"], outside: Float[Tensor, "*b m"]) -> Float[Tensor, "*b"]:
    """How well a score tells unknown samples from known ones: in [0, 1], 0.5 for not at all.

        P(score of an outside sample > score of an inside one) + P(equal) / 2

    This is the area under the receiver operating characteristic.

    Args:
        inside: scores of known samples, such as the `predictive_entropy` of a test set.
        outside: scores of samples from elsewhere, which should be larger.

    >>> auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.25, 0.9]))
    tensor(0.8333)

    Reference: Hendrycks, Gimpel, A baseline for detecting misclassified and out-of-distribution
    examples in neural networks, ICLR 2017.
    """
    inputs.check_outliers("auroc", inside, outside)
    dtype = torch.promote_types(working_dtype(inside.dtype), working_dtype(outside.dtype))
    known = inside.to(dtype).sort(-1).values
    other = outside.to(dtype).contiguous()
    below = torch.searchsorted(known, other)
    not_above = torch.searchsorted(known, other, right=True)
    # in double: counts of pairs soon exceed what float32 can count
    pairs = (below + not_above).double().mean(-1) / (2 * known.shape[-1])
    return pairs.to(dtype)


def _read(metric: str, probabilities: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Checked probabilities in working precision, and targets to index with."""
    inputs.check_probabilities(metric, probabilities)
    inputs.check_target(metric, target, probabilities)
    return probabilities.to(working_dtype(probabilities.dtype)), target.long()
