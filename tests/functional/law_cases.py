"""Operators, backends, tokens and masks that the laws are run over."""

import dataclasses
import functools

import pytest
import torch

import bistoch

N, M, D, E = 7, 11, 5, 3
BATCH = (2, 3)


def small(operator, **more):
    options = {**operator.small, **more}
    parts = {part: functools.partial(getattr(operator, part), **options)
             for part in ("attention", "plan")}  # fmt: skip
    return dataclasses.replace(operator, **parts) if options else operator


def by_backend(kernel_marks=(pytest.mark.slow,)):
    """Every operator, as often as it has backends: "auto" leaves problems of this size to one.

    Kernels for GPUs run in Triton's interpreter, which takes its time.
    """
    for name, row in bistoch.OPERATORS.items():
        if "backend" not in row.options():
            yield pytest.param(small(row), id=name)
            continue
        for backend in row.backends:
            marks = kernel_marks if backend == "triton" else ()
            yield pytest.param(small(row, backend=backend), id=f"{name}-{backend}", marks=marks)


every_operator = pytest.mark.parametrize(
    "operator", [small(row) for row in bistoch.OPERATORS.values()], ids=lambda o: o.name
)
every_backend = pytest.mark.parametrize("operator", list(by_backend()))
# for laws of a few calls, which no run of the tests leaves out
every_backend_always = pytest.mark.parametrize("operator", list(by_backend(kernel_marks=())))


def keys_for(operator, n=N, m=M):
    return n if operator.square else m


def tokens(n=N, m=M, dtype=torch.float64, batch=BATCH):
    return (
        torch.randn(*batch, n, D, dtype=dtype),
        torch.randn(*batch, m, D, dtype=dtype),
        torch.randn(*batch, m, E, dtype=dtype),
    )


def masks(operator, n=N, m=M):
    """What the operator may hide: pairs, padded queries and keys, and one row that sees nothing."""
    if operator.masks == "none":
        return {}
    if operator.square:
        # whole tokens are missing, as many queries as keys
        real = torch.arange(n) < torch.tensor([n - 3, n])[:, None, None]
        return {"query_mask": real, "key_mask": real}
    query_mask = torch.arange(n) < torch.tensor([n, n - 2])[:, None, None]
    key_mask = torch.arange(m) < torch.tensor([m - 3, m])[:, None, None]
    hidden = {"query_mask": query_mask, "key_mask": key_mask}
    if operator.masks == "any":
        hidden["mask"] = torch.rand(*BATCH, n, m) > 0.2
        hidden["mask"][0, 1, 2] = False
    return hidden


def allowed_pairs(options, n, m):
    allowed = torch.ones(*BATCH, n, m, dtype=torch.bool)
    if "mask" in options:
        allowed = allowed & options["mask"]
    if "key_mask" in options:
        allowed = allowed & options["query_mask"][..., None] & options["key_mask"][..., None, :]
    return allowed
