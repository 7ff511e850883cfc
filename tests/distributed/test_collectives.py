"""Collectives equal one process that holds everything; a rank that does not fit is told to all."""

import time

import pytest

import bistoch.distributed as bd
from distributed import collective_cases as cases
from distributed.pool import Pool, RankFailureError

WORLDS = (1, 2, 3, 4)


@pytest.mark.parametrize("size", WORLDS)
def test_gather_and_logsumexp_equal_one_process(pool, size):
    for differences in pool.run(size, cases.gather_and_logsumexp):
        assert max(differences) < 1e-10, differences


@pytest.mark.parametrize("size", WORLDS)
def test_gradients_of_what_all_ranks_have(pool, size):
    total = size * (size + 1) / 2
    for whole, share in pool.run(size, cases.replicated_and_share):
        assert whole == [total, total]
        assert share == pytest.approx([total / size] * 2)


def test_second_derivatives_are_equal_on_all_ranks(pool):
    first, second = pool.run(2, cases.second_derivatives)
    assert first == pytest.approx(second)
    assert all(abs(x) > 0.1 for x in first)


def test_numbers_of_all_ranks(pool):
    assert pool.run(3, cases.agree) == [[[0, 7], [1, 7], [2, 7]]] * 3


def test_options_that_differ_raise_on_every_rank(pool):
    with pytest.raises(RankFailureError) as failure:
        pool.run(3, cases.disagree)
    errors = failure.value.errors
    assert len(set(errors.values())) == 1
    assert errors[0] == (
        "ValueError: test: expected the same iters on all ranks, "
        "got 5 on rank 0, 3 on rank 1, 5 on rank 2"
    )
    assert set(errors) == {0, 1, 2}


def test_an_error_of_one_rank_is_told_to_all(pool):
    with pytest.raises(RankFailureError) as failure:
        pool.run(3, cases.one_fails)
    errors = failure.value.errors
    assert errors[0] == "ValueError: elastic_attention: expected q"
    assert errors[1] == errors[2]
    assert "rank 0 could not go on: ValueError: elastic_attention: expected q" in errors[1]


def test_group_or_mesh(pool):
    assert pool.run(2, cases.outside) == ["elastic_attention: expected group or mesh, got both"] * 2


def test_without_a_process_group():
    with pytest.raises(ValueError, match=r"expected a process group; call .*init_process_group"):
        bd.rank_group("elastic_attention")


def test_a_rank_that_dies_is_told_to_all_others():
    with Pool(3, timeout=6) as pool, pytest.raises(RankFailureError) as failure:
        pool.run(3, cases.one_dies, 6)
    errors = failure.value.errors
    assert errors[1] == "ended"
    for rank in (0, 2):
        assert f"RankError: test: rank {rank} of 3 lost contact with the others" in errors[rank]


def test_a_rank_that_does_not_call_ends_in_a_timeout():
    start = time.monotonic()
    with Pool(2, timeout=2) as pool, pytest.raises(RankFailureError) as failure:
        pool.run(2, cases.one_is_absent)
    assert "lost contact with the others" in failure.value.errors[0]
    assert time.monotonic() - start < 60


def test_no_process_is_left():
    with Pool(2) as pool:
        processes = pool.processes
    assert not any(process.is_alive() for process in processes)
