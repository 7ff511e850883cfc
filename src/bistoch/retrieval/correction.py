"""The correction: fitted to a bank of queries, applied to any index, reported, saved."""

import math
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from bistoch.functional import ConvergenceWarning
from bistoch.functional.inputs import check_choice, check_count, check_finite, check_tol
from bistoch.functional.inputs.warn import warn_caller
from bistoch.retrieval.lists import HubReport, Occurrences
from bistoch.retrieval.ranks import Sharded, Split, join
from bistoch.retrieval.solve import solve
from bistoch.retrieval.temperature import split_eps
from bistoch.retrieval.vectors import Vectors, append, as_tensor, check_widths, in_blocks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# what a saved correction consists of
FIELDS = ("bias", "bank", "row", "eps", "lam", "level")


class HubCorrection:
    """A bias per document that keeps hubs out of the result lists of an inner-product search.

        score(q, d) = <q, d> + bias_d,   bias = eps * g,   g the column potentials of the plan of a
        bank of past queries over the documents (scores <q, d> / eps, elasticity lam)

    Any inner-product index takes the bias as one more coordinate: index `documents(x)` instead of
    x and search with `queries(y)` instead of y. For cosine similarity normalise the vectors first.

    Args:
        eps: temperature of the plan, in units of the scores. "auto" needs no labels: it is where
            one in 200 documents competes for a query, by the perplexity of its softmax over the
            documents (median over the bank).
        lam: elasticity in [0, 1]: 0 changes nothing, 1 gives every document the same share of the
            bank. 0.9 by default; 1 is better where the queries of the bank are those that will be
            asked, and each has one document of its own (docs/retrieval.md).
        tol: column error at which the iterations stop.
        iters: iterations at most; a warning says when `tol` was not reached.

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
    ) -> None:
        _check_settings(eps, lam)
        check_finite("HubCorrection", "tol", tol, example=1e-2)
        check_tol("HubCorrection", tol)
        check_count("HubCorrection", "iters", iters)
        self.eps, self.lam, self.tol, self.iters = eps, lam, tol, iters
        self._fitted: _Fitted | None = None
        self._documents: list[np.ndarray | Tensor] = []

    def fit(
        self,
        queries: Vectors,
        documents: Vectors,
        *,
        sharded: Sharded = "queries",
        group: Any = None,
        mesh: "DeviceMesh | None" = None,
    ) -> "HubCorrection":
        """Find the bias of every document from a bank of past queries.

        Nothing of size queries x documents is kept in memory. The documents are remembered for
        `report`, not copied.

        Args:
            queries, documents: vectors. With ranks, those of this one.
            sharded: what every rank has a part of, if there are ranks; all of them have all of the
                other. Of "queries", all ranks end with the same fit, that of one process, and with
                the whole bank. Of "documents", each ends with the bias of its own: `documents`,
                `add`, `report` and `save` are about these alone.
            group, mesh: ranks that fit together, a process group or a device mesh with one axis.

        >>> import numpy as np
        >>> draw = np.random.default_rng(0).normal(size=(2, 30, 4)).astype("float32")
        >>> HubCorrection(eps=0.5).fit(*draw).bias.shape
        (30,)
        """
        bank, found, split = self._join(queries, documents, sharded, group, mesh)
        eps = split_eps(bank, found, split) if self.eps == "auto" else float(self.eps)
        eps = split.max(torch.tensor([eps], dtype=torch.float64, device=bank.device)).item()
        plan = solve(
            bank, found, eps=eps, lam=self.lam, tol=self.tol, iters=self.iters, split=split
        )
        if not math.isfinite(plan.error):
            raise ValueError(
                "HubCorrection.fit: the scores of queries and documents must be finite in units of "
                f"eps={eps:.3g}, but they overflow {str(bank.dtype).removeprefix('torch.')}; take "
                "a larger eps, or normalise the vectors"
            )
        if plan.error > self.tol:
            warn_caller(
                f"HubCorrection.fit: the column error is {plan.error:.2g} after {self.iters} "
                f"iterations, above tol={self.tol:g}; allow more iters, or take a larger eps or a "
                "smaller lam",
                ConvergenceWarning,
            )
        bias = eps * plan.column[split.own_documents()]
        # a copy: `add` needs the queries of the fit, whatever becomes of the caller's
        bank, row = split.gather("queries", bank.clone()), split.gather("queries", plan.row)
        fitted = _Fitted(bias, bank, row, eps, 0.0)
        # rankings do not see a constant in the bias, so the iterations leave it open; documents
        # that are added later need the one of this fit
        some = split.every("documents", max(1, len(plan.column) // 100))
        level = fitted.bias[some] - _column_step(fitted, found[some], self.lam)
        level = split.row_sum(torch.stack([level.sum(), level.new_tensor(float(len(level)))]))
        self._fitted = fitted._replace(level=(level[0] / level[1]).item())
        self._documents = [documents]
        return self

    def _join(
        self,
        queries: Vectors,
        documents: Vectors,
        sharded: Sharded,
        group: Any,
        mesh: "DeviceMesh | None",
    ) -> tuple[Tensor, Tensor, Split]:
        """Checked vectors in one precision, and who has the others; ranks are refused together."""
        facts: dict[str, Any] = {}
        counts: dict[str, int] = {}
        error: Exception | None = None
        bank = found = torch.empty(0)
        try:
            check_choice("HubCorrection.fit", "sharded", sharded, ("queries", "documents"))
            bank, found = as_tensor("queries", queries), as_tensor("documents", documents)
            check_widths("queries", bank, "documents", found.shape[1])
            dtype = torch.promote_types(bank.dtype, found.dtype)
            bank, found = bank.to(dtype), found.to(dtype)
            facts = {"eps": self.eps, "lam": self.lam, "tol": self.tol, "iters": self.iters}
            facts |= {"number of features": bank.shape[1], "precision": dtype}
            counts = {"queries": len(bank), "documents": len(found)}
        except (TypeError, ValueError) as wrong:
            error = wrong
        split = join(sharded, facts, counts, error, group, mesh, bank.device)
        return bank, found, split

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
        found = as_tensor("documents", vectors)
        if len(found) != len(bias):
            raise ValueError(
                f"HubCorrection.documents: expected the {len(bias)} documents of fit and add, in "
                f"their order, but there are {len(found)}; call add for new documents, or fit again"
            )
        check_widths("documents", found, "the bank", self._of_fit().bank.shape[1])
        return append(vectors, bias)

    def queries(self, vectors: Vectors) -> Vectors:
        """Queries with a one as their last coordinate, to be searched for."""
        found = as_tensor("queries", vectors)
        check_widths("queries", found, "the bank", self._of_fit().bank.shape[1])
        return append(vectors, torch.ones(len(found)))

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
        found = as_tensor("documents", documents).to(fitted.bank)
        check_widths("documents", found, "the bank", fitted.bank.shape[1])
        bias = _column_step(fitted, found, self.lam)
        self._fitted = fitted._replace(bias=torch.cat([fitted.bias, bias]))
        # a loaded correction does not hold those before them
        if self._documents:
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
        check_count("HubCorrection.report", "k", k, least=1)
        fitted = self._of_fit()
        asked = fitted.bank if queries is None else as_tensor("queries", queries).to(fitted.bank)
        check_widths("queries", asked, "the bank", fitted.bank.shape[1])
        given = self._documents if documents is None else [documents]
        if not given:
            raise ValueError(
                "HubCorrection.report: a loaded correction does not hold its documents; pass them, "
                "report(documents=...)"
            )
        found = torch.cat([as_tensor("documents", part).to(fitted.bank) for part in given])
        if len(found) != len(fitted.bias):
            raise ValueError(
                f"HubCorrection.report: expected the {len(fitted.bias)} documents of fit and add, "
                f"but there are {len(found)}"
            )
        before, after = (torch.zeros(len(found), dtype=torch.int64) for _ in range(2))
        k = min(k, len(found))
        for block in in_blocks(asked, len(found)):
            scores = block @ found.T
            for counts, shown in ((before, scores), (after, scores + fitted.bias)):
                listed = shown.topk(k).indices.flatten()
                counts += torch.bincount(listed, minlength=len(found)).cpu()
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
    parts = []
    for block in in_blocks(documents, len(fitted.bank)):
        scores = (fitted.bank @ block.T) / fitted.eps + fitted.row[:, None]
        parts.append(fitted.level - lam * fitted.eps * torch.logsumexp(scores, 0))
    return torch.cat(parts)


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
