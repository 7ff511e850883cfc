"""The temperature of a correction, chosen without labels."""

import math

import torch
from torch import Tensor

from bistoch.retrieval.ranks import ALONE, Split
from bistoch.retrieval.vectors import BLOCK_ELEMENTS, in_blocks

# the share of documents that compete for a query at the automatic temperature, and the fewest
SHARE, FEWEST = 1 / 200, 3.0
# queries that are asked for it: as many as this, and fewer scores than that
ASKED, ASKED_SCORES = 256, 2 * BLOCK_ELEMENTS
# halvings of a range of 1e12, on a scale of logarithms: a relative error of 1e-4
HALVINGS = 18


def perplexity_eps(queries: Tensor, documents: Tensor, perplexity: float | None = None) -> float:
    """The temperature at which so many documents compete for a query: a median perplexity.

        eps such that median over queries of exp(entropy(softmax(q D^T / eps))) = perplexity

    Args:
        queries, documents: vectors. Queries are sampled evenly so that time is bounded.
        perplexity: by default a two-hundredth of the documents, at least 3: copies of all documents
            leave the temperature as it is, and so does a sample of them. At most half of them.

    >>> import torch
    >>> queries, documents = torch.randn(2, 1000, 16, generator=torch.Generator().manual_seed(0))
    >>> eps = perplexity_eps(queries, documents, 10)
    >>> entropy = torch.distributions.Categorical(logits=queries @ documents.T / eps).entropy()
    >>> 9 < entropy.exp().median() < 11
    tensor(True)
    """
    return split_eps(queries, documents, ALONE, perplexity)


def split_eps(
    queries: Tensor, documents: Tensor, split: Split, perplexity: float | None = None
) -> float:
    """As `perplexity_eps`, of the queries or documents that all ranks hold together."""
    n, m = split.total("queries", queries), split.total("documents", documents)
    count = max(1, min(n, ASKED, ASKED_SCORES // m))
    places, counts = split.share(torch.linspace(0, n - 1, count).long())
    sample = queries[places.to(queries.device)]
    wanted = max(FEWEST, SHARE * m) if perplexity is None else perplexity
    target = math.log(max(1.0, min(wanted, m / 2)))
    # perplexities grow with eps, so the eps of the median is the median of each query's eps
    found = torch.cat([
        _each_eps(split.gather("documents", block @ documents.T, 1), target)
        for block in in_blocks(sample, m)
    ])  # fmt: skip
    found = split.gather("queries", found, 0, counts)
    # equal scores have no scale of their own, and no order that a bias could mend
    found = found[found > 0]
    return found.median().item() if len(found) else 1.0


def _each_eps(scores: Tensor, target: float) -> Tensor:
    """The temperature of every row at which its entropy is the target; zero for equal scores."""
    scores -= scores.amax(-1, keepdim=True)
    spread = -scores.mean(-1, keepdim=True)
    low, high = spread * 1e-6, spread * 1e6
    for _ in range(HALVINGS):
        middle = (low * high).sqrt()
        weights = (scores / middle).exp_()
        total = weights.sum(-1, keepdim=True)
        # a dot product of every row, without a matrix of products
        mean = torch.linalg.vecdot(weights, scores)[:, None] / total / middle
        sharp = total.log() - mean < target
        low, high = torch.where(sharp, middle, low), torch.where(sharp, high, middle)
    return torch.where(spread > 0, (low * high).sqrt(), 0)[:, 0]
