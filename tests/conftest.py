import pytest
import torch


@pytest.fixture(autouse=True)
def _repeatable_and_poisoned():
    """Same numbers in every run; uninitialised memory is full of NaN, so no read of it passes."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
