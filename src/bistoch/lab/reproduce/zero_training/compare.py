"""Embeddings of a changed model next to those of the model as it was."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize


def compare(
    before: Float[Tensor, "samples features"],
    after: Float[Tensor, "samples features"],
    topics: list[int] | None,
) -> dict[str, float | None]:
    """How much of the embeddings and of their similarities is left.

    Args:
        before, after: one vector per sentence.
        topics: of every sentence, to ask whether the nearest neighbour shares it.

    >>> x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    >>> round(compare(x, 2 * x, [0, 0, 1, 1, 1])["spearman"], 6)
    1.0
    """
    from scipy.stats import spearmanr

    same = cosine_similarity(before, after)
    ours, theirs = (normalize(x) @ normalize(x).T for x in (after, before))
    pairs = torch.ones_like(ours, dtype=torch.bool).triu(1)
    nearest, earlier = (_nearest(similarity) for similarity in (ours, theirs))
    return {
        "cosine": same.mean().item(),
        "lowest": same.min().item(),
        "spearman": float(spearmanr(ours[pairs].numpy(), theirs[pairs].numpy()).statistic),
        "neighbour": (nearest == earlier).float().mean().item(),
        "topic": None if topics is None else _shared(nearest, topics),
        "largest_difference": (after - before).abs().max().item(),
    }


def _nearest(similarity: Tensor) -> Tensor:
    alone = torch.eye(len(similarity), dtype=torch.bool)
    return similarity.masked_fill(alone, -torch.inf).argmax(-1)


def _shared(nearest: Tensor, topics: list[int]) -> float:
    own = torch.tensor(topics)
    return (own[nearest] == own).float().mean().item()
