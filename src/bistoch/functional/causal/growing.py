"""Decoding in place: a state in memory that is doubled when it is full, filled by the CPU kernels.

What a model keeps beside its cache belongs to nobody else, so nothing is copied from token to
token. Rows are those of `causal_elastic_step`; what the kernels do not do is left to it.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional._nonfinite import largest_score
from bistoch.functional.backends import HAS_NUMBA
from bistoch.functional.causal.cpu.launch import Inputs, forward_with_state
from bistoch.functional.causal.decode import CausalState
from bistoch.functional.elastic.operator import is_plain
from bistoch.functional.inputs import Option
from bistoch.functional.kernels import kernel_module
from bistoch.functional.kernels.address import padded, readable_rows, row_step
from bistoch.functional.pose import per_problem

# keys for which there is room at first
SMALLEST = 64
# numbers in a cache below which a second thread is not worth waking
SMALL = 1 << 17


class StepOptions(NamedTuple):
    """The rule of causal balance, as numbers for every head of a batch, side by side."""

    lam: Float[Tensor, "B"]
    sharpness: Float[Tensor, "B"]
    # no sharpness is larger than this
    sharpest: float
    block: int
    prior: float


@dataclass
class GrowingState:
    """A `CausalState` with room for more keys.

    Attributes:
        columns: bias, received and wanted of every key, with room behind the last.
        level, position: as in a `CausalState`.
        length: how many keys there are.
        largest_key: no key is longer than this, in the Euclidean norm.
    """

    columns: Float[Tensor, "3 *b c"]
    level: Float[Tensor, "*b"]
    position: Int[Tensor, "*b"]
    length: int
    largest_key: float

    @classmethod
    def of(cls, state: CausalState, key: Float[Tensor, "*#b m d"]) -> "GrowingState":
        """A copy of a state that can grow, with the keys that it belongs to."""
        length = state.length
        columns = _room(state.bias.shape[:-1], length, state.bias)
        for column, source in zip(columns, state[:3], strict=True):
            column[..., :length] = source
        level, position = (x.clone(memory_format=torch.contiguous_format) for x in state[3:])
        return cls(columns, level, position, length, _length(key[..., :length, :]))

    @property
    def state(self) -> CausalState:
        """The state, as views that the next step changes."""
        bias, received, wanted = (column[..., : self.length] for column in self.columns)
        return CausalState(bias, received, wanted, self.level, self.position)

    def index_select(self, axis: int, index: Int[Tensor, "k"]) -> "GrowingState":
        """The states of chosen sequences, for beam search."""
        chosen = self.state.index_select(axis, index)
        return replace(
            self,
            columns=self.columns.index_select(axis + 1, index),
            level=chosen.level,
            position=chosen.position,
        )

    def grow(self, length: int) -> None:
        """Make room for so many keys."""
        if length > self.columns.shape[-1]:
            larger = _room(self.columns.shape[1:-1], length, self.columns)
            larger[..., : self.length] = self.columns[..., : self.length]
            self.columns = larger
        self.length = length


def _room(batch: torch.Size | list[int], length: int, like: Tensor) -> Float[Tensor, "3 *b c"]:
    capacity = padded(max(SMALLEST, 2 * length), like.element_size())
    return like.new_zeros(3, *batch, capacity)


def can_grow(*tensors: Tensor | None) -> bool:
    """Whether the kernels may compute this: on a CPU, and nobody wants a gradient."""
    given = [tensor for tensor in tensors if tensor is not None]
    if not HAS_NUMBA or not all(tensor.device.type == "cpu" for tensor in given):
        return False
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    return not wanted and not torch.jit.is_tracing() and is_plain(given)


def belong_together(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether queries, keys and values are as alike as kernels that read addresses need it."""
    (batch, heads, n, d), (size, shared, m, width) = query.shape, key.shape
    return (
        query.dtype == key.dtype == value.dtype
        and value.shape[:-1] == key.shape[:-1]
        and (size, width) == (batch, d)
        and shared > 0
        and heads % shared == 0
        and n <= m
    )


def step_options(
    query: Float[Tensor, "b h n d"], scale: float | None, lam: Option, eps: Option, block: int,
    prior: float,
) -> StepOptions:  # fmt: skip
    """The rule for every head of a batch, from options that were checked."""
    batch, like = query.shape[:-2], query.flatten(0, 1)
    scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
    if isinstance(eps, Tensor):
        sharpness = scale / per_problem(eps, batch, like)
        sharpest = _length(sharpness)
    else:
        sharpness, sharpest = per_problem(scale / eps, batch, like), abs(scale / eps)
    lams = per_problem(lam, batch, like)
    return StepOptions(lams.contiguous(), sharpness.contiguous(), sharpest, block, prior)


def begin(
    query: Float[Tensor, "b h n d"],
    key: Float[Tensor, "b kv n d"],
    value: Float[Tensor, "b kv n e"],
    options: StepOptions,
) -> tuple[Float[Tensor, "b h n e"], GrowingState] | None:
    """The rows of a whole sequence and the state after them; None if there is a NaN to be told."""
    batch, heads, n, _ = query.shape
    longest = _length(key)
    if not _is_ordinary(query, longest, value, options):
        return None
    shape = (batch, key.shape[1], heads // key.shape[1])
    # several query heads share the keys of one: an axis of size one, which costs nothing
    grouped, keys, values = query.view(*shape, *query.shape[2:]), key[:, :, None], value[:, :, None]
    columns = _room([batch, heads], n, query)
    level = query.new_empty(batch, heads)
    inputs = Inputs(grouped, keys, values, None, None, None, options.sharpness, options.lam)
    rows = forward_with_state(inputs, options.prior, options.block, columns, level)
    position = torch.full((batch, heads), n, device="cpu")
    growing = GrowingState(columns, level, position, n, longest)
    return rows.view(batch, heads, n, -1), growing


def append(
    query: Float[Tensor, "b h 1 d"],
    key: Float[Tensor, "b kv m d"],
    value: Float[Tensor, "b kv m e"],
    growing: GrowingState,
    options: StepOptions,
    key_mask: Bool[Tensor, "#b 1 m"] | None,
) -> Float[Tensor, "b h 1 e"] | None:
    """The row of one new token; the state is changed.

    None, and no change, if there is a NaN, or if the state is not that of these tokens.
    """
    batch, heads, _, d = query.shape
    kv, keys, e = key.shape[1], growing.length + 1, value.shape[-1]
    # the kernels read addresses: whoever is asked instead converts the state, or says what is wrong
    like = growing.columns.dtype == growing.level.dtype == query.dtype
    if not like or growing.columns.shape[1:-1] != (batch, heads) or key.shape[-2] < keys:
        return None
    new = slice(keys - 1, keys)
    # a NaN is not larger than anything
    added = _length(key[..., new, :])
    longest = added if not added <= growing.largest_key else growing.largest_key
    if not _is_ordinary(query, longest, value[..., new, :], options):
        return None
    growing.grow(keys)
    growing.largest_key = longest
    runtime, size = kernel_module("kernels.runtime"), query.element_size()
    groups, each = batch * kv, heads // kv
    # a block of keys may be collected in a row
    stride = padded(max(keys, 2 * options.block), size)
    workers = max(1, min(runtime.threads(), groups)) if batch * kv * keys * d > SMALL else 1
    key, value = readable_rows(key), readable_rows(value)
    query = query if query.stride(-1) == 1 and query.stride(1) >= d else query.contiguous()
    output = query.new_empty(batch, heads, 1, e)
    workspace = query.new_empty(workers * each * stride + 1)
    # the last number of the workspace is the prior
    workspace[-1] = options.prior
    real = None
    if key_mask is not None:
        real = key_mask[..., :keys].expand(batch, 1, keys).contiguous()
    columns, work = growing.columns, workspace.data_ptr()
    fields = (
        0, 0, runtime.gemm_address(query.dtype), groups, kv, each, keys, d, e, options.block,
        query.data_ptr(), query.stride(0), query.stride(1),
        key.data_ptr(), key.stride(0), key.stride(1), row_step(key),
        value.data_ptr(), value.stride(0), value.stride(1), row_step(value),
        0 if real is None else real.data_ptr(), options.sharpness.data_ptr(),
        options.lam.data_ptr(), work + workers * each * stride * size,
        columns.data_ptr(), columns.stride(0), columns.shape[-1],
        growing.level.data_ptr(), growing.position.data_ptr(), output.data_ptr(),
        work, each * stride, stride, 0, 0,
    )  # fmt: skip
    numbers = np.array(fields, np.int64)
    job = numbers.ctypes.data
    # the counters are behind all else
    numbers[0], numbers[1] = job + 8 * (len(fields) - 2), job + 8 * (len(fields) - 1)
    kernel = kernel_module("causal.cpu.kernels").step_kernel(query.dtype)
    call, arguments = runtime.entry(kernel, job, workers)
    call(*arguments)
    return output


def _length(tokens: Tensor) -> float:
    return torch.linalg.vector_norm(tokens.detach()).item()


def _is_ordinary(query: Tensor, longest_key: float, value: Tensor, options: StepOptions) -> bool:
    """Whether nothing is NaN, infinite, or large enough to become it."""
    scores = _length(query) * longest_key * max(1.0, options.sharpest)
    finite = np.isfinite(value.detach().sum().item())
    return bool(scores <= largest_score(query.dtype) and finite)
