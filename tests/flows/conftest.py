"""Clouds that the tests of this room share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    # small clouds: more threads would only wait for each other
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cloud():
    """So many particles in so many dimensions, always the same."""

    def draw(*shape, seed=0, dtype=torch.float64):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)

    return draw
