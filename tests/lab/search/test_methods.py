"""Methods against hubs, against formulas written out, and the task with halves of pictures."""

import numpy as np

from bistoch.lab.search import BASELINES, baseline_bias, choose_eps, load_halves, search
from bistoch.lab.search.methods import balanced_bias
from bistoch.retrieval import HubCorrection


def vectors(*shape, seed=0):
    found = np.random.default_rng(seed).normal(size=shape)
    return found / np.linalg.norm(found, axis=-1, keepdims=True)


def test_the_bias_gives_the_order_of_the_published_scores():
    queries, documents, eps = vectors(31, 7), vectors(23, 7, seed=1), 0.1
    scores = queries @ documents.T
    nearest_queries = np.sort(scores, 0)[-10:].mean(0)
    nearest_documents = np.sort(scores, 1)[:, -10:].mean(1, keepdims=True)
    by_row = np.exp(scores / eps) / np.exp(scores / eps).sum(1, keepdims=True)
    by_column = np.exp(scores / eps) / np.exp(scores / eps).sum(0)
    published = {
        "cosine": scores,
        "CSLS": 2 * scores - nearest_queries - nearest_documents,
        "inverted softmax": by_column,
        "dual softmax": by_row * by_column,
    }
    assert tuple(published) == BASELINES
    for method, wanted in published.items():
        found = scores + baseline_bias(method, queries, documents, eps)
        np.testing.assert_array_equal(np.argsort(found, 1), np.argsort(wanted, 1))


def test_ranks_and_lists_are_those_of_sorted_scores():
    queries, documents = vectors(31, 7), vectors(43, 7, seed=1)
    documents[5] = documents[3]
    queries[5] = queries[3] = documents[3]
    bias = np.random.default_rng(2).normal(size=43) / 10
    bias[5] = bias[3] = 1.0
    found = search(queries, documents, bias, k=5)
    order = np.argsort(-(queries @ documents.T + bias), axis=1, kind="stable")
    np.testing.assert_array_equal(order[np.arange(31), found.ranks], np.arange(31))
    np.testing.assert_array_equal(found.first, order[:, 0])
    # of two documents with one score the first wins
    assert (found.ranks[3], found.ranks[5]) == (0, 1)
    assert found.lists.counts.sum() == 5 * 31
    assert found.recall(10) >= found.recall(1) == found.hits().mean()


def test_a_temperature_that_does_not_converge_is_not_chosen():
    queries, documents = vectors(31, 7), vectors(23, 7, seed=1)

    def score(eps):
        HubCorrection(eps=eps, lam=1.0, iters=3, tol=1e-3).fit(queries, documents)
        return -eps

    assert choose_eps(score, grid=(1e-3, 10.0)) == 10.0


def test_halves_of_other_pictures_are_the_bank_and_validation_sees_no_test_picture():
    test, validation = load_halves("top finds bottom"), load_halves(validation=True)
    assert len(test.queries) == len(test.documents) == 1000
    assert len(test.bank) == 4000
    assert (len(validation.bank), len(validation.queries)) == (3000, 1000)
    np.testing.assert_allclose(np.linalg.norm(test.bank, axis=1), 1, atol=1e-6)
    assert not (validation.pictures[:, None] == test.pictures[None, :7]).all((2, 3)).any()


def test_balance_is_ahead_of_every_simple_method_on_halves():
    halves = load_halves()
    # the best on validation pairs
    eps = {"inverted softmax": 0.02, "dual softmax": 0.015}
    for asked, lam, gain in ((halves.queries, 1.0, 0.13), (halves.bank, 0.9, 0.08)):

        def recall(bias):
            return search(halves.queries, halves.documents, bias).recall()

        simple = {
            method: recall(baseline_bias(method, asked, halves.documents, eps.get(method, 0.0)))
            for method in BASELINES
        }
        ours = recall(balanced_bias(asked, halves.documents, lam))
        assert ours > simple["cosine"] + gain
        assert ours > max(simple.values())
