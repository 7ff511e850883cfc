import os

import pytest
import torch

if not torch.cuda.is_available():
    # kernels for GPUs run in Triton's interpreter; it is asked for before Triton is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")


# with which torch before 2.10 multiplies matrices on a GPU in a repeatable way
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(autouse=True)
def _repeatable_and_poisoned():
    """Same numbers in every run; uninitialised memory is full of NaN, so no read of it passes."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
