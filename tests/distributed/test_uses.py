"""Prototypes, search, layers and models over ranks are those of one process."""

import pytest

from distributed import uses_cases as cases
from distributed.pool import RankFailureError

WORLDS = (2, 3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 4)))
CODES = ("plain", "softmax", "one step", "elastic", "temperature", "shares", "padding")


def check(found, limit=1e-9):
    """Fail with a table of all that is too far apart."""
    far = [
        f"rank {rank}: {case}: {name} is {apart:.2g} apart"
        for rank, table in enumerate(found)
        for case, differences in table.items()
        for name, apart in differences.items()
        if not apart < limit
    ]
    assert not far, "\n".join(far)


@pytest.mark.parametrize("backend", ["reference", "streaming"])
@pytest.mark.parametrize("size", WORLDS)
def test_codes_equal_one_process(pool, size, backend):
    check(pool.run(size, cases.codes, CODES, backend))


@pytest.mark.parametrize("size", WORLDS)
def test_codes_equal_the_published_steps_until_these_overflow(pool, size):
    found = pool.run(size, cases.published_codes)
    assert max(rank["apart"] for rank in found) < 1e-12
    assert max(rank["ours"] for rank in found) < 1e-3
    assert not any(rank["finite"] for rank in found)


@pytest.mark.parametrize("iters", [0, 1, 3])
def test_a_broken_score_shows_on_all_ranks(pool, iters):
    assert pool.run(3, cases.broken_codes, iters) == [True] * 3


@pytest.mark.parametrize("what", ["prototypes", "iters"])
def test_codes_of_ranks_that_do_not_fit(pool, what):
    with pytest.raises(RankFailureError) as failure:
        pool.run(3, cases.wrong_codes, what)
    word = {"prototypes": "number of columns", "iters": "iters"}[what]
    for error in failure.value.errors.values():
        assert f"ValueError: prototype_codes: expected the same {word} on all ranks" in error
    assert len(failure.value.errors) == 3


@pytest.mark.parametrize("size", WORLDS)
def test_layers_equal_one_process(pool, size):
    check(pool.run(size, cases.layers))


def test_layers_that_need_all_tokens(pool):
    for said in pool.run(2, cases.refused_layer):
        assert said[0] == (
            "Attention: with a mesh the operator must be one of softmax, sinkhorn, elastic, "
            "causal_elastic, but it is hard; leave the mesh out, or use one of these"
        )
        assert "elastic: the plan of tokens that are sharded over a mesh is never made" in said[1]


@pytest.mark.slow
@pytest.mark.parametrize("size", WORLDS)
def test_pretrained_models_equal_one_process(pool, size):
    check(pool.run(size, cases.pretrained, list(cases.MODELS)))


# scores at once: all of them, and blocks of a few queries
@pytest.mark.parametrize("block", [1 << 20, 90])
@pytest.mark.parametrize("size", WORLDS)
def test_hub_corrections_equal_one_process(pool, size, block):
    check(pool.run(size, cases.corrections, block), limit=1e-6)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("lam", "HubCorrection.fit: expected the same lam on all ranks, got 0.9 on rank 0"),
        ("documents", "expected the same number of documents on all ranks, got 29 on rank 0"),
        ("nan", "queries must be finite, but 1 of 53 vectors hold NaN"),
    ],
)
def test_banks_that_do_not_fit(pool, what, sentence):
    with pytest.raises(RankFailureError) as failure:
        pool.run(2, cases.wrong_correction, what)
    assert all(sentence in error for error in failure.value.errors.values())
    assert len(failure.value.errors) == 2
