"""Pools over real tokens."""

import pytest
import torch

from bistoch.models.pooling import max_of_real, mean_of_real


@pytest.mark.parametrize(("pool", "plain"), [(mean_of_real, torch.mean), (max_of_real, torch.amax)])
def test_padding_is_left_out_whatever_stands_there(pool, plain):
    x = torch.randn(2, 7, 3)
    mask = torch.tensor([[True] * 5 + [False] * 2, [False] * 7])
    x[0, 5:] = torch.inf
    torch.testing.assert_close(pool(x, mask)[0], plain(x[0, :5], 0))
    assert pool(x, mask)[1].eq(0).all()
    torch.testing.assert_close(pool(x[:, :5], None), plain(x[:, :5], 1))
    assert pool(x[:, :0], None).eq(0).all()
    assert pool(x[:, :0], mask[:, :0]).eq(0).all()
