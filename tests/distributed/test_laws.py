"""Laws over ranks, messages by formula, and ranks that do not fit each other."""

import pytest
import torch

from distributed import law_cases as cases
from distributed.pool import Pool, RankFailureError

SIZES = [pytest.param(size, marks=[] if size == 3 else pytest.mark.slow) for size in (1, 2, 3, 4)]


@pytest.mark.parametrize("size", SIZES)
def test_laws(pool, size):
    for broken in pool.run(size, cases.laws):
        assert not broken


@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_what_is_not_finite_shows_on_all_ranks(pool, where):
    for value in (torch.nan, torch.inf):
        assert pool.run(3, cases.not_finite, where, value) == [[True] * 3] * 3


def test_mesh(pool):
    assert pool.run(4, cases.over_a_mesh) == [True] * 4


@pytest.mark.parametrize("keys", ["gather", "ring"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_messages_are_those_of_the_formula(pool, size, keys):
    for iters in (0, 1, 5):
        assert pool.run(size, cases.counted, keys, iters) == [(True, True)] * size


def test_sums_that_are_far_from_the_last_are_taken_anew(pool):
    assert pool.run(3, cases.sums_of_columns, 1) == [6] * 3
    found = pool.run(3, cases.sums_of_columns, 100)
    assert found[0] > 6
    assert found == [found[0]] * 3


def test_what_a_ring_keeps_is_linear_in_the_shard(pool):
    short, long = (pool.run(2, cases.saved, n, "ring")[0] for n in (64, 512))
    assert long == pytest.approx(8 * short, rel=0.01)
    # twice the ranks, half the memory
    assert pool.run(4, cases.saved, 512, "ring")[0] == pytest.approx(long / 2, rel=0.01)
    # gathered keys do not shrink
    assert (
        pool.run(4, cases.saved, 512, "gather")[0]
        > 0.6 * pool.run(2, cases.saved, 512, "gather")[0]
    )


OTHERS = "rank 1 could not go on: "
OTHER = {
    "lam": (0.7, "expected the same lam on all ranks, got 0.5 on rank 0, 0.7 on rank 1"),
    "iters": (4, "expected the same iters on all ranks, got 3 on rank 0, 4 on rank 1"),
    "keys": ("ring", "expected the same keys on all ranks, got gather on rank 0, ring on rank 1"),
    "tol": (1e-3, "expected the same tol on all ranks, got None on rank 0, 0.001 on rank 1"),
    "key": (torch.zeros(2, 4, 6).double(), OTHERS + "ValueError: elastic_attention: "),
    "query": (torch.zeros(3, 4, 5).double(), OTHERS + "ValueError: elastic_attention: "),
    "eps": (-1.0, OTHERS + "ValueError: elastic_attention: eps must be"),
    "backend": ("cpu", OTHERS + "BackendUnavailableError: elastic_attention: the "),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_a_rank_that_does_not_fit_is_told_to_all(pool, name):
    value, sentence = OTHER[name]
    with pytest.raises(RankFailureError) as failure:
        pool.run(3, cases.with_other, name, value)
    errors = failure.value.errors
    assert set(errors) == {0, 1, 2}
    assert sentence in errors[0]
    assert sentence in errors[2]


def test_a_tensor_on_one_rank_only(pool):
    with pytest.raises(RankFailureError) as failure:
        pool.run(2, cases.with_other, "column_mass", torch.ones(4, dtype=torch.float64))
    assert "expected the same column_mass on all ranks, got None on rank 0" in str(failure.value)


def test_a_mask_of_another_width_is_told_to_all(pool):
    with pytest.raises(RankFailureError) as failure:
        pool.run(3, cases.with_other_mask)
    sentence = "expected a mask with a column for each of the 12 keys of all ranks, got 13 columns"
    assert all(sentence in text for text in failure.value.errors.values())
    assert set(failure.value.errors) == {0, 1, 2}


def test_ranks_still_answer_after_all_that(pool):
    assert pool.run(4, cases.over_a_mesh) == [True] * 4


def test_a_tolerance_that_is_not_reached(pool):
    found = pool.run(2, cases.warns)
    assert found[0] == found[1]
    assert "the column error is" in found[0][0]


@pytest.mark.parametrize("keys", ["gather", "ring"])
def test_a_rank_that_dies_in_the_middle(keys):
    with Pool(3, timeout=8) as pool, pytest.raises(RankFailureError) as failure:
        pool.run(3, cases.dies_in_the_middle, keys)
    errors = failure.value.errors
    assert errors[1] == "ended"
    for rank in (0, 2):
        assert f"RankError: elastic_attention: rank {rank} of 3 lost contact" in errors[rank]
