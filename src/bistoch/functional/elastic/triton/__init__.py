"""Triton kernels of the elastic operator; `backend` is what is imported when they are chosen.

Nothing here imports Triton before a kernel is needed.
"""

import torch

from bistoch.functional.kernels.gpu import is_interpreted
from bistoch.functional.problem import GivenScores, Scores

# tiles of wider tokens would not stay in registers
WIDEST = 256


def takes(scores: Scores | GivenScores, features: int) -> bool:
    """Whether the kernels know tokens, and values of so many features, of this width and dtype.

    In float64, which GPUs multiply slowly, they only run in the interpreter, for tests.
    """
    known = scores.like.dtype == torch.float32 or is_interpreted()
    return known and max(features_of(scores), features) <= WIDEST


def features_of(scores: Scores | GivenScores) -> int:
    """The features of the tokens; scores that are given have none."""
    return scores.query.shape[2] if isinstance(scores, Scores) else 0
