"""Who competes on a GPU in bfloat16: the attention kernels of torch, and ours."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bistoch.functional import (
    BackendUnavailableError,
    causal_elastic_attention,
    elastic_attention,
)
from bistoch.lab.bench.contenders import Calls, Contender, Task, torch_calls

# how the names of those end that compute in bfloat16
HALF = " bf16"
# what torch says where it lacks the only kernel that was asked for
NO_KERNEL = ("No available kernel", "No viable backend")
# bfloat16 has eight bits: what results and gradients may be off by, relative to their size
TOLERANCE = 0.02


def half_contenders() -> dict[str, Contender]:
    """Softmax attention by each kernel of torch, with a bias by FlexAttention, and our kernels.

    >>> list(half_contenders())
    ['sdpa flash bf16', 'sdpa cudnn bf16', 'flex bias bf16', 'elastic triton bf16']
    """
    rows = [
        Contender("sdpa flash bf16", _softmax("FLASH_ATTENTION"), "softmax", tolerance=TOLERANCE),
        Contender("sdpa cudnn bf16", _softmax("CUDNN_ATTENTION"), "softmax", tolerance=TOLERANCE),
        Contender("flex bias bf16", _prepare_flex, "softmax", tolerance=TOLERANCE),
        Contender("elastic triton bf16", _prepare_elastic, "elastic", tolerance=TOLERANCE),
    ]
    return {row.name: row for row in rows}


def causal_half_contenders() -> dict[str, Contender]:
    """Causal softmax by each kernel of torch, and our kernels of causal balance.

    >>> list(causal_half_contenders())
    ['sdpa flash bf16', 'sdpa cudnn bf16', 'causal_elastic triton bf16']
    """
    kernels = {"sdpa flash bf16": "FLASH_ATTENTION", "sdpa cudnn bf16": "CUDNN_ATTENTION"}
    rows = [
        Contender(name, _softmax(kernel, is_causal=True), "causal softmax", tolerance=TOLERANCE)
        for name, kernel in kernels.items()
    ]
    ours = partial(_in_half, partial(causal_elastic_attention, backend="triton"))
    rows.append(
        Contender("causal_elastic triton bf16", ours, "causal elastic", tolerance=TOLERANCE)
    )
    return {row.name: row for row in rows}


def _in_half(function: Callable[..., Tensor], task: Task) -> Calls:
    """Calls with inputs that were rounded before, so that nobody is timed for it."""
    half = task._replace(
        inputs=tuple(x.bfloat16() for x in task.inputs), cotangent=task.cotangent.bfloat16()
    )
    calls = torch_calls(function, half)
    return calls._replace(read=lambda result: tuple(x.float() for x in calls.read(result)))


def _softmax(kernel: str, is_causal: bool = False) -> Callable[[Task], Calls]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(getattr(SDPBackend, kernel)):
            attention = torch.nn.functional.scaled_dot_product_attention
            return attention(query, key, value, is_causal=is_causal)

    def prepare(task: Task) -> Calls:
        calls = _in_half(attend, task)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                calls.forward()
            except RuntimeError as error:
                if not any(said in str(error) for said in NO_KERNEL):
                    raise
                reason = _reason(kernel, [str(one.message) for one in caught]) or str(error)
                raise BackendUnavailableError(f"not available here: {reason}") from error
        return calls

    return prepare


def _reason(kernel: str, warned: Sequence[str]) -> str:
    """Why torch did not use a kernel, by its warnings: a head for each kernel, then the reason.

    >>> _reason("CUDNN_ATTENTION", [
    ...     "Flash attention kernel not used because: (Triggered internally at sdp.cpp:1.)",
    ...     "Flash attention has been runtime disabled. (Triggered internally at sdp.cpp:2.)",
    ...     "cuDNN attention kernel not used because: (Triggered internally at sdp.cpp:3.)",
    ...     "Torch was not compiled with cuDNN attention. (Triggered internally at sdp.cpp:4.)",
    ... ])
    'Torch was not compiled with cuDNN attention.'
    """
    name = kernel.split("_")[0].lower()
    said = [text.split(" (Triggered")[0].strip() for text in warned]
    heads = (text.endswith("not used because:") and name in text.lower() for text in said)
    return next((why for head, why in zip(heads, said[1:], strict=False) if head), "")


def _prepare_flex(task: Task) -> Calls:
    """FlexAttention with one number per key, as a plan with known potentials would have it."""
    from torch.nn.attention.flex_attention import flex_attention

    bias = torch.zeros(task.inputs[1].shape[-2], device=task.inputs[1].device)

    def add(score: Tensor, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        return score + bias[j]

    # programs of earlier sizes would count towards the number after which nothing is compiled; a
    # program for all sizes, which torch would make at the second one, is slower than one for this
    torch.compiler.reset()
    return _in_half(torch.compile(partial(flex_attention, score_mod=add), dynamic=False), task)


def _prepare_elastic(task: Task) -> Calls:
    lam, iters = task.setting.lam, task.setting.iters
    return _in_half(partial(elastic_attention, lam=lam, iters=iters, backend="triton"), task)
