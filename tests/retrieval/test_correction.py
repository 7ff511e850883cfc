"""Hub correction against dense formulas, at prime sizes, and its refusals."""

import numpy as np
import pytest
import torch

import bistoch
from bistoch import retrieval
from bistoch.retrieval import HubCorrection, perplexity_eps


def vectors(queries=211, documents=97, features=13, dtype=np.float64, seed=0):
    """Noisy copies of documents as queries, and one document in the middle of them all."""
    generator = np.random.default_rng(seed)
    found = generator.normal(size=(documents, features))
    found[3] = 0
    asked = found[generator.integers(0, documents, queries)]
    asked = asked + 0.7 * generator.normal(size=asked.shape) + 0.5
    found[3] = asked.mean(0)
    unit = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (asked, found))
    return tuple(x.astype(dtype) for x in unit)


def dense_bias(queries, documents, eps, lam, iters=3000):
    scores = torch.from_numpy(queries @ documents.T) / eps
    column = scores.new_zeros(len(documents))
    for _ in range(iters):
        row = -torch.logsumexp(scores + column, 1)
        mass = np.log(len(queries) / len(documents))
        column = lam * (mass - torch.logsumexp(scores + row[:, None], 0))
    return eps * (column - column.mean()).numpy()


@pytest.mark.parametrize("lam", [0.5, 0.9, 1.0])
def test_the_bias_is_that_of_the_balanced_plan(lam):
    queries, documents = vectors()
    correction = HubCorrection(eps=0.2, lam=lam, tol=1e-10, iters=20000).fit(queries, documents)
    bias = correction.bias
    np.testing.assert_allclose(
        bias - bias.mean(), dense_bias(queries, documents, 0.2, lam), atol=1e-7
    )
    assert bias.argmin() == 3


def test_an_inner_product_index_sees_the_correction():
    queries, documents = vectors()
    correction = HubCorrection().fit(queries, documents)
    scores = correction.queries(queries) @ correction.documents(documents).T
    np.testing.assert_allclose(scores, queries @ documents.T + correction.bias, atol=1e-10)


def test_torch_in_torch_out_in_its_own_precision():
    queries, documents = (torch.from_numpy(x).half() for x in vectors())
    correction = HubCorrection().fit(queries, documents)
    assert correction.documents(documents).dtype == torch.float16
    assert correction.queries(queries[:2]).shape == (2, 14)
    assert np.isfinite(correction.bias).all()


def test_lam_zero_changes_nothing_and_lam_one_evens_out_the_lists():
    queries, documents = vectors()
    free = HubCorrection(lam=0.0).fit(queries, documents)
    assert np.ptp(free.bias) == 0
    report = HubCorrection(lam=1.0).fit(queries, documents).report(k=1)
    assert report.before.hubs(1)[0][0] == 3
    assert report.after.largest < report.before.largest / 2
    assert report.after.never < report.before.never
    assert "documents never found" in str(report)


@pytest.mark.parametrize(("k", "error"), [(-1, ValueError), (0, ValueError), (2.5, TypeError)])
def test_lists_have_a_length(k, error):
    correction = HubCorrection().fit(*vectors())
    with pytest.raises(error, match=r"^HubCorrection.report: k must be"):
        correction.report(k=k)


def test_report_counts_the_lists_of_the_queries_it_is_given(monkeypatch):
    # several blocks, the last one shorter
    monkeypatch.setattr(retrieval.vectors, "BLOCK_ELEMENTS", 97 * 10)
    queries, documents = vectors()
    correction = HubCorrection(eps=0.2).fit(queries, documents)
    report = correction.report(queries[:37], k=5)
    scores = queries[:37] @ documents.T
    for found, shown in ((report.before, scores), (report.after, scores + correction.bias)):
        lists = np.argsort(-shown, 1)[:, :5]
        np.testing.assert_array_equal(found.counts, np.bincount(lists.ravel(), minlength=97))


@pytest.mark.parametrize("lam", [0.9, 1.0])
def test_an_added_document_gets_the_bias_it_would_have_been_fitted(lam, monkeypatch):
    monkeypatch.setattr(retrieval.vectors, "BLOCK_ELEMENTS", 211 * 10)
    queries, documents = vectors()
    correction = HubCorrection(eps=0.2, lam=lam, tol=1e-10, iters=20000).fit(queries, documents)
    before = correction.bias
    np.testing.assert_allclose(correction.add(documents[:23]), before[:23], atol=1e-7)
    assert len(correction.bias) == 97 + 23
    longer = np.concatenate([documents, documents[:23]])
    assert correction.documents(longer).shape == (120, 14)
    assert len(correction.report().after.counts) == 120


def test_a_saved_correction_comes_back(tmp_path):
    queries, documents = vectors(dtype=np.float32)
    correction = HubCorrection().fit(queries, documents)
    again = HubCorrection.load(correction.save(tmp_path / "hubs.npz"))
    np.testing.assert_array_equal(again.bias, correction.bias)
    assert again.fitted_eps == correction.fitted_eps
    assert [path.name for path in tmp_path.iterdir()] == ["hubs.npz"]
    with pytest.raises(ValueError, match="does not hold its documents"):
        again.report()
    np.testing.assert_array_equal(again.add(documents[:3]), correction.add(documents[:3]))
    with pytest.raises(ValueError, match="does not hold its documents"):
        again.report()
    (tmp_path / "half.npz").write_bytes((tmp_path / "hubs.npz").read_bytes()[:-200])
    with pytest.raises(ValueError, match="no saved correction"):
        HubCorrection.load(tmp_path / "half.npz")


def test_the_automatic_temperature_follows_the_scale_of_the_scores():
    queries, documents = (torch.from_numpy(x) for x in vectors(977, 499))
    eps = perplexity_eps(queries, documents)
    assert perplexity_eps(10 * queries, documents) == pytest.approx(10 * eps, rel=1e-3)
    assert perplexity_eps(queries * 0, documents) == 1.0
    # copies of all documents leave it as it is
    many = documents.repeat(2, 1)
    assert perplexity_eps(queries, many.repeat(2, 1)) == pytest.approx(
        perplexity_eps(queries, many), rel=1e-3
    )
    few = perplexity_eps(queries, documents[:4])
    entropy = torch.distributions.Categorical(logits=queries @ documents[:4].T / few).entropy()
    assert entropy.exp().median().item() == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda q, d: HubCorrection(eps=-1), ValueError, "eps must be 'auto' or a positive"),
        (lambda q, d: HubCorrection(eps=float("nan")), ValueError, "eps must be"),
        (lambda q, d: HubCorrection(lam=1.5), ValueError, "lam must be a number in"),
        (lambda q, d: HubCorrection(tol=None), (TypeError, ValueError), "tol must be"),
        (lambda q, d: HubCorrection(tol=float("nan")), ValueError, "tol must be"),
        (lambda q, d: HubCorrection(iters=-1), ValueError, "iters must be at least 0"),
        (lambda q, d: HubCorrection(iters=2.5), TypeError, "iters must be a whole number"),
        (lambda q, d: HubCorrection(eps=1e-320).fit(q, d), ValueError, "overflow float64"),
        (lambda q, d: HubCorrection().fit(q * 1e200, d * 1e200), ValueError, "overflow float64"),
        (lambda q, d: HubCorrection().bias, RuntimeError, "call fit"),
        (lambda q, d: HubCorrection().fit(q[:0], d), ValueError, "queries must be a matrix"),
        (lambda q, d: HubCorrection().fit(q, d[0]), ValueError, "documents must be a matrix"),
        (lambda q, d: HubCorrection().fit(q[:, 1:], d), ValueError, "12 features"),
        (lambda q, d: HubCorrection().fit(q.astype(int), d), TypeError, "of floats"),
        (lambda q, d: HubCorrection().fit(q.tolist(), d), TypeError, "numpy array or a tensor"),
        (lambda q, d: HubCorrection().fit(q * np.nan, d), ValueError, "211 of 211 vectors"),
        (lambda q, d: HubCorrection().fit(q, d).documents(d[1:]), ValueError, "the 97 documents"),
        (lambda q, d: HubCorrection().fit(q, d).queries(d[:, 1:]), ValueError, "12 features"),
        (lambda q, d: HubCorrection().fit(q, d).add(d[:, 1:]), ValueError, "12 features"),
    ],
)
def test_bad_input_gets_a_sentence(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(*vectors())


def test_an_unreached_tolerance_is_a_warning():
    with pytest.warns(bistoch.ConvergenceWarning, match="tol"):
        HubCorrection(eps=0.01, lam=1.0, iters=2).fit(*vectors())


def test_the_bank_is_that_of_the_fit_whatever_becomes_of_the_queries():
    queries, documents = vectors(dtype=np.float32)
    correction = HubCorrection().fit(queries, documents)
    before = correction.add(documents[:3])
    queries *= 5
    np.testing.assert_array_equal(correction.add(documents[:3]), before)


@pytest.mark.parametrize("dtype", [">f4", ">f8", np.longdouble])
def test_floats_that_torch_does_not_know(dtype):
    queries, documents = vectors()
    found = HubCorrection(eps=0.2).fit(queries.astype(dtype), documents.astype(dtype))
    wanted = HubCorrection(eps=0.2).fit(queries, documents)
    np.testing.assert_allclose(found.bias, wanted.bias, atol=1e-4)
    assert found.documents(documents.astype(dtype)).dtype == np.dtype(dtype).newbyteorder("=")


def test_vectors_may_be_mapped_from_a_file_for_reading(tmp_path):
    for name, found in zip(("queries", "documents"), vectors(dtype=np.float32), strict=True):
        np.save(tmp_path / name, found)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("queries", "documents")]
    # a warning would be an error
    assert np.isfinite(HubCorrection().fit(*mapped).bias).all()
