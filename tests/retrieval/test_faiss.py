"""A corrected search through indexes of faiss equals one that adds the bias to every score."""

import numpy as np
import pytest

from bistoch.retrieval import HubCorrection

faiss = pytest.importorskip("faiss")


def task(count=499, features=29):
    generator = np.random.default_rng(0)
    draw = generator.normal(size=(2 * count, features)) + 0.7 * generator.normal(size=features)
    found = (draw / np.linalg.norm(draw, axis=1, keepdims=True)).astype("float32")
    return found[:count], found[count:]


def biased(queries, documents, bias, k=10):
    scores = queries @ documents.T + bias
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


def test_a_flat_index_gives_the_biased_search():
    queries, documents = task()
    correction = HubCorrection().fit(queries, documents)
    index = faiss.IndexFlatIP(documents.shape[1] + 1)
    index.add(correction.documents(documents))
    scores, found = index.search(correction.queries(queries), 10)
    wanted, order = biased(queries, documents, correction.bias)
    np.testing.assert_allclose(scores, wanted, atol=1e-5)
    # scores that rounding cannot tell apart may change places
    assert (found == order).mean() > 0.999
    plain = np.argsort(-(queries @ documents.T), axis=1)[:, :10]
    assert (found == plain).mean() < 0.9


def test_a_graph_index_finds_nearly_all_of_it():
    queries, documents = task()
    correction = HubCorrection().fit(queries, documents)
    index = faiss.IndexHNSWFlat(documents.shape[1] + 1, 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efSearch = 200
    index.add(correction.documents(documents))
    _, found = index.search(correction.queries(queries), 10)
    _, order = biased(queries, documents, correction.bias)
    kept = np.mean([len(set(a) & set(b)) for a, b in zip(found, order, strict=True)]) / 10
    assert kept > 0.97


def test_documents_that_are_added_later_are_found():
    queries, documents = task()
    correction = HubCorrection().fit(queries, documents[:-20])
    index = faiss.IndexFlatIP(documents.shape[1] + 1)
    index.add(correction.documents(documents[:-20]))
    bias = correction.add(documents[-20:])
    index.add(np.concatenate([documents[-20:], bias[:, None]], 1))
    scores, _ = index.search(correction.queries(queries), 10)
    wanted, _ = biased(queries, documents, correction.bias)
    np.testing.assert_allclose(scores, wanted, atol=1e-5)
