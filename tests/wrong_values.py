"""Wrong values by kind of argument, and what a call with one of them must end in.

Sizes: problems of BATCH, N queries and keys, D features, E features of a value.
"""

import numpy as np
import torch

N, D, E = 7, 5, 4
BATCH = (2, 3)
NAN, INF = float("nan"), float("inf")

JAGGED = torch.nested.nested_tensor([torch.ones(n, 5) for n in (2, 3)], layout=torch.jagged)

# what is no tensor
NO_TENSOR = {
    "number": 1.5,
    "text": "all",
    "boolean": True,
    "list": [[1.0, 2.0], [3.0, 4.0]],
    "array": np.ones((N, D), np.float32),
    "function": torch.randn,
}


def floating(*shape):
    """What is no floating-point tensor of this shape, without saying anything about its entries."""
    return NO_TENSOR | {
        "integers": torch.ones(shape, dtype=torch.int64),
        "booleans": torch.ones(shape, dtype=torch.bool),
        "complex": torch.ones(shape, dtype=torch.complex64),
        "elsewhere": torch.ones(shape, device="meta"),
        "sparse": torch.ones(shape).to_sparse(),
        "jagged": JAGGED,
    }


def tokens(size, **wrong):
    shape = (*BATCH, N, size)
    return floating(*shape) | {
        "nothing": None,
        "no axes": torch.ones(()),
        "one axis": torch.ones(size),
        "other dtype": torch.ones(shape, dtype=torch.float64),
        "other batch": torch.ones(5, N, size),
    } | wrong  # fmt: skip


def boolean(*shape):
    return NO_TENSOR | {
        "integers": torch.ones(shape, dtype=torch.int64),
        "floats": torch.ones(shape),
        "elsewhere": torch.ones(shape, dtype=torch.bool, device="meta"),
        "other shape": torch.ones(13, 13, dtype=torch.bool),
        "too many axes": torch.ones(1, 1, 2, *shape, dtype=torch.bool),
        "sparse": torch.ones(shape, dtype=torch.bool).to_sparse(),
        "jagged": JAGGED > 0,
    }


NO_NUMBER = {
    "text": "0.5",
    "boolean": True,
    "complex": 0.5j,
    "list": [0.5],
    "array": np.full(3, 0.5),
    "nan": NAN,
    "infinite": INF,
}


def option(*wrong):
    """A number, or one for each problem, that may not be one of the wrong ones."""
    tensors = {
        "integers": torch.ones(3, dtype=torch.int64),
        "booleans": torch.ones(3, dtype=torch.bool),
        "complex tensor": torch.ones(3, dtype=torch.complex64),
        "other shape": torch.ones(13),
        "elsewhere": torch.ones(3, device="meta"),
        "nan tensor": torch.tensor([0.5, NAN, 0.5]),
    }
    numbers = {f"{x}": x for x in wrong} | {f"{x} tensor": torch.full((3,), x) for x in wrong}
    return NO_NUMBER | tensors | numbers


def number(*wrong):
    numbers = {f"{x}": x for x in wrong}
    return NO_NUMBER | {"tensor": torch.tensor(0.5)} | numbers


def count(*wrong):
    return {
        "text": "3",
        "boolean": True,
        "fraction": 2.5,
        "whole float": 3.0,
        "nan": NAN,
        "list": [3],
        "tensor": torch.tensor(3),
        "array": np.array(3),
    } | {f"{x}": x for x in wrong}  # fmt: skip


CHOICE = {"nothing": None, "unknown": "nonsense", "number": 3, "list": ["auto"],
          "array": np.array([1, 2]), "tensor": torch.ones(2)}  # fmt: skip
FLAG = {"nothing": None, "text": "yes", "number": 1, "tensor": torch.tensor(True), "list": [True]}
GENERATOR = {"number": 3, "text": "seed", "function": torch.manual_seed}
NOTHING = {"nothing": None}
MASS = floating(N) | {
    "other shape": torch.ones(13),
    "zero": torch.tensor([1.0] * 6 + [0.0]),
    "negative": torch.tensor([1.0] * 6 + [-1.0]),
    "nan": torch.tensor([1.0] * 6 + [NAN]),
}
VARIANCE = floating(*BATCH, N, D) | {
    "no axes": torch.ones(()),
    "other shape": torch.ones(13, 13),
    "negative": -torch.ones(N, D),
    "nan": torch.full((N, D), NAN),
}
MASK = {k: v for k, v in boolean(N, N).items() if k != "floats"} | {
    "complex": torch.ones(N, N, dtype=torch.complex64)
}


def find_silent(call, name, arguments, wrong):
    """What is wrong with how a call ends, for each wrong value of each argument.

    Args:
        call: what to call with keywords.
        name: how every sentence must begin, or several of which one must fit.
        arguments: keywords that it accepts.
        wrong: by argument, wrong values by label.
    """
    begins = tuple(f"{one}: " for one in ((name,) if isinstance(name, str) else name))
    silent = []
    for argument, values in wrong.items():
        for label, value in values.items():
            try:
                call(**arguments | {argument: value})
                found = "accepted"
            except (TypeError, ValueError, NotImplementedError) as error:
                if str(error).startswith(begins) and argument in str(error):
                    continue
                found = f"{type(error).__name__}: {str(error)[:150]}"
            except Exception as error:
                found = f"{type(error).__name__}: {str(error)[:150]}"
            silent.append(f"{argument}, {label}: {found}")
    return silent
