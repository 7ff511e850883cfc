"""Hub correction for nearest-neighbour search: one number per document, for any index.

Some documents are near to every query and fill the result lists of searches they do not answer.
The column potentials of the balanced plan between past queries and documents measure that, and
subtract it.
"""

import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from bistoch.functional import elastic_potentials

# how many documents compete for a query at the automatic temperature
COMPETITORS = 10
# scores that are held in memory at once: 64 MiB in float32
BLOCK_ELEMENTS = 1 << 24
# what a saved correction consists of
FIELDS = ("bias", "bank", "row", "eps", "lam", "level")

Vectors = TypeVar("Vectors", np.ndarray, Tensor)


class Occurrences(NamedTuple):
    """In how many result lists each document is: `counts`, one number per document.

    >>> import numpy as np
    >>> found = Occurrences(np.array([0, 4, 1, 0]))
    >>> found.largest, found.never, found.hubs(1)
    (4, 0.5, [(1, 4)])
    """

    counts: np.ndarray

    @property
    def largest(self) -> int:
        """The lists that the most frequent document is in."""
        return int(self.counts.max())

    @property
    def never(self) -> float:
        """The share of documents that are in no list."""
        return float((self.counts == 0).mean())

    def hubs(self, count: int = 10) -> list[tuple[int, int]]:
        """The most frequent documents: position and number of lists."""
        order = np.argsort(-self.counts, kind="stable")[:count]
        return [(int(i), int(self.counts[i])) for i in order]


class HubReport(NamedTuple):
    """Result lists of length `k` for `queries` queries, before and after the correction."""

    k: int
    queries: int
    before: Occurrences
    after: Occurrences

    def __str__(self) -> str:
        lines = [
            f"top {self.k} of {self.queries} queries over {len(self.before.counts)} documents",
            f"{'':24}{'before':>10}{'after':>10}",
            f"{'largest hub, lists':24}{self.before.largest:>10}{self.after.largest:>10}",
            f"{'documents never found':24}{self.before.never:>10.1%}{self.after.never:>10.1%}",
            "",
            f"{'hub (document)':24}{'before':>10}{'after':>10}",
        ]
        for place, count in self.before.hubs():
            lines.append(f"{place:<24}{count:>10}{int(self.after.counts[place]):>10}")
        return "\n".join(lines)


class HubCorrection:
    """A bias per document that keeps hubs out of the result lists of an inner-product search.

        score(q, d) = <q, d> + bias_d,   bias = eps * g,   g the column potentials of the plan of a
        bank of past queries over the documents (scores <q, d> / eps, elasticity lam)

    Any inner-product index takes the bias as one more coordinate: index `documents(x)` instead of
    x and search with `queries(y)` instead of y. For cosine similarity normalise the vectors first.

    Args:
        eps: temperature of the plan, in units of the scores. "auto" needs no labels: it is where
            the softmax of a query over the documents has a perplexity of 10 (median over the bank).
        lam: elasticity in [0, 1]: 0 changes nothing, 1 gives every document the same share of the
            bank. 0.9 by default; 1 is better where the queries of the bank are those that will be
            asked, and each has one document of its own (docs/retrieval.md).
        tol: column error at which the iterations stop.
        iters: iterations at most; a warning says when `tol` was not reached.
        backend: who computes the plan, as in `elastic_potentials`.

    >>> import torch
    >>> from bistoch.retrieval import HubCorrection
    >>> generator = torch.Generator().manual_seed(0)
    >>> documents = torch.randn(50, 8, generator=generator)
    >>> queries = documents + 0.5 * torch.randn(50, 8, generator=generator)
    >>> documents = torch.cat([documents, 3 * queries.mean(0, keepdim=True)])  # near to all
    >>> correction = HubCorrection().fit(queries, documents)
    >>> correction.documents(documents).shape, correction.queries(queries).shape
    (torch.Size([51, 9]), torch.Size([50, 9]))

    Reference: Smith, Turban, Hamblin, Hammerla, Offline bilingual word vectors, orthogonal
    transformations and the inverted softmax, ICLR 2017 (the first column step).
    """

    def __init__(
        self,
        eps: float | Literal["auto"] = "auto",
        lam: float = 0.9,
        *,
        tol: float = 1e-2,
        iters: int = 200,
        backend: str = "auto",
    ) -> None:
        _check_settings(eps, lam)
        self.eps, self.lam, self.tol, self.iters, self.backend = eps, lam, tol, iters, backend
        self._fitted: _Fitted | None = None
        self._documents: list[np.ndarray | Tensor] = []

    def fit(self, queries: Vectors, documents: Vectors) -> "HubCorrection":
        """Find the bias of every document from a bank of past queries.

        Nothing of size queries x documents is kept in memory. The documents are remembered for
        `report`, not copied.

        >>> import numpy as np
        >>> draw = np.random.default_rng(0).normal(size=(2, 30, 4)).astype("float32")
        >>> HubCorrection(eps=0.5).fit(*draw).bias.shape
        (30,)
        """
        bank, found = _tensor("queries", queries), _tensor("documents", documents)
        _check_widths("queries", bank, "documents", found.shape[1])
        bank, found = (
            bank.to(dtype := torch.promote_types(bank.dtype, found.dtype)),
            found.to(dtype),
        )
        eps = perplexity_eps(bank, found) if self.eps == "auto" else float(self.eps)
        with torch.no_grad():
            potentials = elastic_potentials(
                bank, found, lam=self.lam, eps=eps, scale=1.0, iters=self.iters, tol=self.tol,
                backend=self.backend,
            )  # fmt: skip
        fitted = _Fitted(eps * potentials.column, bank, potentials.row, eps, 0.0)
        # rankings do not see a constant in the bias, so the iterations leave it open; documents
        # that are added later need the one of this fit
        some = found[:: max(1, len(found) // 100)]
        level = fitted.bias[:: max(1, len(found) // 100)] - _column_step(fitted, some, self.lam)
        self._fitted = fitted._replace(level=level.mean().item())
        self._documents = [documents]
        return self

    @property
    def fitted_eps(self) -> float:
        """The temperature that was used."""
        return self._of_fit().eps

    @property
    def bias(self) -> np.ndarray:
        """What is added to the score of every document, in the order of the documents."""
        return self._of_fit().bias.cpu().numpy()

    def documents(self, vectors: Vectors) -> Vectors:
        """The fitted documents with their bias as one more coordinate, to be indexed."""
        bias = self._of_fit().bias
        found = _tensor("documents", vectors)
        if len(found) != len(bias):
            raise ValueError(
                f"HubCorrection.documents: expected the {len(bias)} documents of fit and add, in "
                f"their order, but there are {len(found)}; call add for new documents, or fit again"
            )
        _check_widths("documents", found, "the bank", self._of_fit().bank.shape[1])
        return _append(vectors, bias)

    def queries(self, vectors: Vectors) -> Vectors:
        """Queries with a one as their last coordinate, to be searched for."""
        found = _tensor("queries", vectors)
        _check_widths("queries", found, "the bank", self._of_fit().bank.shape[1])
        return _append(vectors, torch.ones(len(found)))

    def add(self, documents: Vectors) -> np.ndarray:
        """The bias of new documents, without a new fit; they are appended to the fitted ones.

        It is one column step at the row potentials of the fit, which is exact for a copy of a
        document that was fitted. Fit again when many have been added.

        >>> import numpy as np
        >>> queries, documents = np.random.default_rng(0).normal(size=(2, 30, 4))
        >>> correction = HubCorrection(eps=0.5, tol=1e-9, iters=1000).fit(queries, documents)
        >>> bool(np.allclose(correction.add(documents[:3]), correction.bias[:3], atol=1e-6))
        True
        """
        fitted = self._of_fit()
        found = _tensor("documents", documents).to(fitted.bank)
        _check_widths("documents", found, "the bank", fitted.bank.shape[1])
        parts = [_column_step(fitted, part, self.lam) for part in _blocks(found, len(fitted.bank))]
        bias = torch.cat(parts)
        self._fitted = fitted._replace(bias=torch.cat([fitted.bias, bias]))
        self._documents.append(documents)
        return bias.cpu().numpy()

    def report(
        self, queries: Vectors | None = None, documents: Vectors | None = None, k: int = 10
    ) -> HubReport:
        """Which documents are in how many result lists, before and after the correction.

        Args:
            queries: whose lists to look at, by default the bank.
            documents: by default those of `fit` and `add`; needed after `load`.
            k: length of a list.
        """
        fitted = self._of_fit()
        asked = fitted.bank if queries is None else _tensor("queries", queries).to(fitted.bank)
        _check_widths("queries", asked, "the bank", fitted.bank.shape[1])
        given = self._documents if documents is None else [documents]
        if not given:
            raise ValueError(
                "HubCorrection.report: a loaded correction does not hold its documents; pass them, "
                "report(documents=...)"
            )
        found = torch.cat([_tensor("documents", part).to(fitted.bank) for part in given])
        if len(found) != len(fitted.bias):
            raise ValueError(
                f"HubCorrection.report: expected the {len(fitted.bias)} documents of fit and add, "
                f"but there are {len(found)}"
            )
        before, after = (torch.zeros(len(found), dtype=torch.int64) for _ in range(2))
        k = min(k, len(found))
        for block in _blocks(asked, len(found)):
            scores = block @ found.T
            for counts, shown in ((before, scores), (after, scores + fitted.bias)):
                counts += torch.bincount(shown.topk(k).indices.flatten(), minlength=len(found))
        return HubReport(k, len(asked), Occurrences(before.numpy()), Occurrences(after.numpy()))

    def save(self, path: str | Path) -> Path:
        """Write the fitted correction as one .npz file, whole or not at all; no pickle in it."""
        fitted, path = self._of_fit(), Path(path)
        arrays: dict[str, Any] = {
            "bias": fitted.bias.cpu().numpy(),
            "bank": fitted.bank.cpu().numpy(),
            "row": fitted.row.cpu().numpy(),
            "eps": fitted.eps,
            "lam": self.lam,
            "level": fitted.level,
        }
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as stream:
                np.savez(stream, **arrays)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return path

    @classmethod
    def load(cls, path: str | Path) -> "HubCorrection":
        """Read what `save` wrote."""
        try:
            # opened here: numpy leaves a damaged file open
            with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as stored:
                read = {name: stored[name] for name in FIELDS}
        except (ValueError, KeyError, EOFError, BadZipFile) as error:
            raise ValueError(
                f"HubCorrection.load: {path} is no saved correction ({error}); make one with save"
            ) from error
        correction = cls(eps=float(read["eps"]), lam=float(read["lam"]))
        bias, bank, row = (torch.from_numpy(read[name]) for name in ("bias", "bank", "row"))
        correction._fitted = _Fitted(bias, bank, row, float(read["eps"]), float(read["level"]))
        return correction

    def _of_fit(self) -> "_Fitted":
        if self._fitted is None:
            raise RuntimeError(
                "HubCorrection: nothing was fitted yet; call fit(queries, documents) first"
            )
        return self._fitted


class _Fitted(NamedTuple):
    """What a fit found."""

    bias: Tensor
    bank: Tensor
    row: Tensor
    eps: float
    # what the bias of a document is when its column step is zero
    level: float


def _column_step(fitted: _Fitted, documents: Tensor, lam: float) -> Tensor:
    """The bias that the row potentials of a fit give to documents."""
    scores = (fitted.bank @ documents.T) / fitted.eps + fitted.row[:, None]
    return fitted.level - lam * fitted.eps * torch.logsumexp(scores, 0)


def perplexity_eps(queries: Tensor, documents: Tensor, perplexity: float = COMPETITORS) -> float:
    """The temperature at which so many documents compete for a query: a median perplexity.

        eps such that median over queries of exp(entropy(softmax(q D^T / eps))) = perplexity

    At most half the documents compete. Queries are sampled evenly so that memory is bounded.

    >>> import torch
    >>> queries, documents = torch.randn(2, 1000, 16, generator=torch.Generator().manual_seed(0))
    >>> eps = perplexity_eps(queries, documents)
    >>> entropy = torch.distributions.Categorical(logits=queries @ documents.T / eps).entropy()
    >>> 9 < entropy.exp().median() < 11
    tensor(True)
    """
    count = max(1, min(len(queries), 256, BLOCK_ELEMENTS // len(documents)))
    sample = queries[torch.linspace(0, len(queries) - 1, count).long()]
    scores = (sample @ documents.T).double()
    scores = scores - scores.amax(-1, keepdim=True)
    target = math.log(max(1.0, min(perplexity, len(documents) / 2)))
    spread = -scores.mean().item()
    # equal scores have no scale of their own, and no order that a bias could mend
    if not spread > 0:
        return 1.0
    low, high = spread * 1e-6, spread * 1e6
    # 32 halvings of this range leave a relative error of 1e-8
    for _ in range(32):
        middle = math.sqrt(low * high)
        entropy = torch.distributions.Categorical(logits=scores / middle).entropy()
        low, high = (middle, high) if entropy.median().item() < target else (low, middle)
    return math.sqrt(low * high)


def _blocks(vectors: Tensor, others: int) -> Iterator[Tensor]:
    """Rows in blocks whose scores against so many others keep to the budget."""
    yield from vectors.split(max(1, BLOCK_ELEMENTS // max(1, others)))


def _append(vectors: Vectors, column: Tensor) -> Vectors:
    if isinstance(vectors, np.ndarray):
        column_array = column.cpu().numpy().astype(vectors.dtype)
        return np.concatenate([vectors, column_array[:, None]], 1)
    return torch.cat([vectors, column.to(vectors)[:, None]], 1)


def _tensor(name: str, vectors: Any) -> Tensor:
    """Vectors as a checked tensor in working precision."""
    if isinstance(vectors, np.ndarray):
        found = (
            torch.from_numpy(np.ascontiguousarray(vectors)) if vectors.dtype.kind == "f" else None
        )
    else:
        found = vectors.detach() if isinstance(vectors, Tensor) else None
    if found is None or not found.is_floating_point():
        kind = getattr(vectors, "dtype", type(vectors).__name__)
        raise TypeError(
            f"HubCorrection: {name} must be a numpy array or a tensor of floats, one vector per "
            f"row, but it is {kind}; convert it, for example with numpy.asarray(x, 'float32')"
        )
    if found.ndim != 2 or 0 in found.shape:
        raise ValueError(
            f"HubCorrection: {name} must be a matrix with at least one vector per row, but its "
            f"shape is {tuple(found.shape)}; stack the vectors to (count, features)"
        )
    found = found if found.dtype == torch.float64 else found.float()
    bad = ~found.isfinite().all(-1)
    if bool(bad.any()):
        raise ValueError(
            f"HubCorrection: {name} must be finite, but {int(bad.sum())} of {len(found)} vectors "
            f"hold NaN or infinity, the first at row {int(bad.nonzero()[0])}; leave them out"
        )
    return found


def _check_widths(name: str, vectors: Tensor, other: str, width: int) -> None:
    if vectors.shape[1] != width:
        raise ValueError(
            f"HubCorrection: {name} have {vectors.shape[1]} features, but {other} have {width}; "
            "use vectors of the same encoder"
        )


def _check_settings(eps: Any, lam: Any) -> None:
    numbers = (int, float)
    if eps != "auto" and not (
        isinstance(eps, numbers) and not isinstance(eps, bool) and 0 < eps < math.inf
    ):
        raise ValueError(
            f"HubCorrection: eps must be 'auto' or a positive number, but it is {eps!r}; it is in "
            "units of the scores, for example 0.02 for cosine similarities"
        )
    if not (isinstance(lam, numbers) and not isinstance(lam, bool) and 0 <= lam <= 1):
        raise ValueError(f"HubCorrection: lam must be a number in [0, 1], but it is {lam!r}")
