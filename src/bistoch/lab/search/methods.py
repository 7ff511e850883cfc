"""Methods against hubs. Each is one number per document, found from a bank of queries.

They differ in the number only: score(q, d) = <q, d> + bias_d for all of them, since what depends on
the query alone does not change the order of its results.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from bistoch.lab.device import CPU
from bistoch.retrieval import HubCorrection, Occurrences

Vectors = Float[np.ndarray, "count features"]
Bias = Float[np.ndarray, "documents"]

# the nearest queries of a document that CSLS averages over, and the length of a result list
NEAREST, LISTED = 10, 10
# temperatures to choose from, in units of cosine similarities
GRID = (0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2)
BASELINES = ("cosine", "CSLS", "inverted softmax", "dual softmax")
# those that have a temperature
WARM = BASELINES[2:]


def baseline_bias(method: str, bank: Vectors, documents: Vectors, eps: float = 0.0) -> Bias:
    """The bias of a simple method.

    Args:
        method: "cosine" (none), "CSLS" (half the mean of the ten largest scores of a document),
            "inverted softmax" (one column step), "dual softmax" (half of it: the product of the
            softmax over documents and that over queries).
        bank, documents: unit vectors.
        eps: temperature of the last two.

    >>> bank = documents = np.eye(3)
    >>> baseline_bias("inverted softmax", bank, documents, eps=1.0).round(3).tolist()
    [-1.551, -1.551, -1.551]
    """
    if method == "cosine":
        return np.zeros(len(documents))
    scores = bank @ documents.T
    if method == "CSLS":
        nearest = np.partition(scores, -min(NEAREST, len(bank)), axis=0)[-NEAREST:]
        bias = -nearest.mean(0) / 2
    else:
        share = {"inverted softmax": 1.0, "dual softmax": 0.5}[method]
        bias = -share * eps * torch.logsumexp(torch.from_numpy(scores / eps), 0).numpy()
    return np.asarray(bias)


def balanced_bias(
    bank: Vectors,
    documents: Vectors,
    lam: float,
    eps: float | None = None,
    device: torch.device = CPU,
) -> Bias:
    """The bias of `HubCorrection`; None for the automatic temperature."""
    found = HubCorrection(eps="auto" if eps is None else eps, lam=lam)
    return found.fit(*(torch.from_numpy(x).to(device) for x in (bank, documents))).bias


@dataclass(frozen=True)
class Found:
    """What searches found: the rank of the right document of each query, and the result lists.

    `ranks` start at 0; `first` are the first results, `lists` says in how many result lists of
    length ten each document is.
    """

    ranks: Int[np.ndarray, "queries"]
    first: Int[np.ndarray, "queries"]
    lists: Occurrences

    def hits(self, k: int = 1) -> Bool[np.ndarray, "queries"]:
        """Whether the right document is among the first k."""
        return self.ranks < k

    def recall(self, k: int = 1) -> float:
        """The share of queries that find their document among the first k: R@k."""
        return float(self.hits(k).mean())


def search(
    queries: Vectors,
    documents: Vectors,
    bias: Bias,
    k: int = LISTED,
    device: torch.device = CPU,
) -> Found:
    """Search for all queries; query i is looking for document i, and there may be more documents.

    >>> found = search(np.eye(3)[[0, 1, 1]], np.eye(3), np.zeros(3), k=1)
    >>> found.ranks.tolist(), found.first.tolist(), found.lists.counts.tolist()
    ([0, 0, 2], [0, 1, 1], [1, 2, 0])
    """
    asked, known, more = (torch.from_numpy(x).to(device) for x in (queries, documents, bias))
    scores = asked @ known.T + more
    places = torch.arange(len(queries), device=device)
    own = scores[places, places, None]
    # of equal scores the first document wins
    earlier = torch.arange(len(documents), device=device) < places[:, None]
    ranks = ((scores > own) | ((scores == own) & earlier)).sum(1)
    listed = scores.topk(min(k, len(documents))).indices.flatten()
    counts = torch.bincount(listed, minlength=len(documents))
    found, first, lists = (x.cpu().numpy() for x in (ranks, scores.argmax(1), counts))
    return Found(found, first, Occurrences(lists))


def choose_eps(score: Callable[[float], float], grid: Sequence[float] = GRID) -> float:
    """The temperature with the best score, a recall on validation pairs for example.

    A temperature at which the iterations do not converge is not chosen.

    >>> choose_eps(lambda eps: -abs(eps - 0.035), grid=(0.01, 0.04, 0.1))
    0.04
    """
    best, chosen = -np.inf, grid[-1]
    for eps in grid:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = score(eps)
        if found > best and not caught:
            best, chosen = found, eps
    return chosen
