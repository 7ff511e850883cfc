import pytest
import torch

from bistoch.analysis import planted_tokens


def scores(size, sink, seed=0):
    query, key = planted_tokens(size, sink=sink, generator=torch.Generator().manual_seed(seed))
    return query @ key.T / query.shape[-1] ** 0.5


def test_the_sink_adds_the_same_to_one_column_and_nothing_else():
    added = scores(9, sink=2.5) - scores(9, sink=0.0)
    expected = torch.zeros(9, 9)
    expected[:, 3] = 2.5
    torch.testing.assert_close(added, expected)


def test_queries_like_their_own_keys():
    assert (scores(20, sink=0.0).argmax(-1) == torch.arange(20)).float().mean() > 0.8


@pytest.mark.parametrize(("size", "sink"), [(0, 0.0), (3, float("inf")), (3, float("nan"))])
def test_bad_wishes_are_refused(size, sink):
    with pytest.raises(ValueError, match="size must be at least 1 and sink must be finite"):
        planted_tokens(size, sink=sink)
