"""Problems that tests of the GPU kernels share, in the interpreter and on a device."""

import torch

N, M, D, E, HEADS = 19, 23, 5, 3, 2


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def positive(*shape):
    return torch.rand(*shape, dtype=torch.float64) + 0.5


def problem(size=1.0, **more):
    tokens = {"query": size * normal(HEADS, N, D), "key": normal(HEADS, M, D)}
    return {**tokens, "value": normal(HEADS, M, E), **more}


OPTIONS = {
    "plain": lambda: ({}, {"iters": 2}),
    "softmax": lambda: ({}, {"iters": 0}),
    "tensors": lambda: (
        {"lam": torch.rand(HEADS).double(), "omega": positive(HEADS), "eps": positive(HEADS),
         "column_mass": positive(M)},
        {"iters": 3},
    ),
    "mask": lambda: (
        {},
        {"iters": 2, "mask": mask_with_a_blind_row(), "query_mask": torch.arange(N) < N - 3,
         "key_mask": torch.arange(M) < M - 4},
    ),
    "tolerance": lambda: ({}, {"iters": 6, "tol": 0.05}),
    "extreme": lambda: ({"size": 300.0}, {"iters": 2}),
}  # fmt: skip

BIASES = {
    "own": lambda: normal(HEADS, N, M),
    "shared": lambda: normal(1, N, M),
    "by column": lambda: normal(HEADS, 1, M),
    "by row": lambda: normal(1, N, 1),
}


def mask_with_a_blind_row():
    mask = torch.rand(HEADS, N, M) > 0.3
    mask[0, 2] = False
    return mask
