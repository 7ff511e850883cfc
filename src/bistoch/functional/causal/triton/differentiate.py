"""The exact gradient of causal balance by the kernels of this folder, span by span.

One launch for all rows; then a span is three, four if its accounts have to be made again, and one
more for a float mask. Of up to 32 blocks there is one span.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bistoch.functional.causal.problem import tie
from bistoch.functional.causal.triton.bias import bias_grad_kernel
from bistoch.functional.causal.triton.blocks import VECTOR, blocks_of, layout_of
from bistoch.functional.causal.triton.launch import least, pairs_of
from bistoch.functional.causal.triton.operator import Gradients, Inputs, Kept
from bistoch.functional.causal.triton.replay import replay_kernel
from bistoch.functional.causal.triton.tokens import key_grad_kernel, query_grad_kernel
from bistoch.functional.causal.triton.vectors import vectors_kernel
from bistoch.functional.elastic.triton.dots import row_dots
from bistoch.functional.kernels.gpu import chunk, dense, launch, no_finer, width


def backward(
    output_grad: Tensor, inputs: Inputs, output: Tensor, kept: Kept, prior: float, block: int,
    mask_too: bool,
) -> Gradients:  # fmt: skip
    """The gradients of all inputs that have one."""
    work, mask = inputs.sharpness, inputs.mask
    query_grad, key_grad, value_grad = (
        torch.zeros(x.shape, dtype=work.dtype, device=work.device)
        for x in (inputs.query, inputs.key, inputs.value)
    )
    lam_grad = torch.zeros_like(inputs.lam, memory_format=torch.contiguous_format)
    mask_grad = work.new_empty(0)
    if mask_too and mask is not None:
        mask_grad = torch.zeros_like(mask, memory_format=torch.contiguous_format)
    size, n, _ = inputs.query.shape
    if size * n:
        replay = _Replay.new(output_grad, inputs, output, kept, prior, block)
        for low, high in layout_of(n, block).spans():
            replay.go_back(low, high, lam_grad)
            replay.add_tokens(low, high, query_grad, key_grad, value_grad)
            if mask_grad.numel():
                replay.add_bias(low, high, mask_grad, inputs.mask_index)
    sharpness = work[:, None, None]
    # the gradient of the queries came without the sharpness, whose own is their product
    sharpness_grad = (inputs.query * query_grad).sum((1, 2))
    return Gradients(
        (query_grad * sharpness).to(inputs.query.dtype),
        (key_grad * sharpness).to(inputs.key.dtype),
        value_grad.to(inputs.value.dtype), mask_grad, sharpness_grad, lam_grad,
    )  # fmt: skip


class _Replay(NamedTuple):
    """A forward with what it left behind, as the kernels take it."""

    common: dict[str, Any]
    kept: Kept
    delta: Tensor  # (B, n): <dO, O>
    accounts: Tensor  # (B, span or span + 1, 2, n): before every block of a span
    sums_grad: Tensor  # (B, span, n): dc of every block of a span
    vectors: Tensor  # (3, B, n): gradients of the bias and of what was received, and room
    dots: Tensor  # (B, n): what the softmax of a row takes off
    spanned: bool

    @classmethod
    def new(
        cls, output_grad: Tensor, inputs: Inputs, output: Tensor, kept: Kept, prior: float,
        block: int,
    ) -> "_Replay":  # fmt: skip
        size, n, features = inputs.value.shape
        work, layout = inputs.sharpness, layout_of(n, block)
        spanned = layout.every > 1
        accounts = work.new_empty(size, layout.span + 1, 2, n) if spanned else kept.history
        sums_grad = work.new_empty(size, layout.span, n)
        common = pairs_of(inputs, prior, block).arguments() | {
            "value": dense(inputs.value),
            "output_grad": no_finer(output_grad, inputs.query),
            "VALUES": features, "VALUE_WIDTH": width(features),
            "VALUE_CHUNK": chunk(features, work.dtype), "levels": kept.levels,
            "levels_each": layout.blocks, "shift": kept.shift, "factor": kept.factor,
            "accounts": accounts, "accounts_each": accounts.stride(0),
            "sums_grad": sums_grad, "sums_each": sums_grad.stride(0),
        }  # fmt: skip
        return cls(
            common, kept, row_dots(output, common), accounts, sums_grad,
            work.new_zeros(3, size, n), work.new_empty(size, n), spanned,
        )  # fmt: skip

    def go_back(self, low: int, high: int, lam_grad: Tensor) -> None:
        """The accounts of a span, if they were not kept, and what its blocks hand to each other."""
        size, n = self.delta.shape
        between = {"low": low, "high": high}
        if self.spanned:
            blocks = blocks_of("replay", self.common | {"VALUES": 0})
            known = min(high * self.common["block"], n)
            start = self.kept.history[:, low // self.sums_grad.shape[1]]
            names = (
                "value", "output_grad", "VALUES", "VALUE_WIDTH", "VALUE_CHUNK", "sums_grad",
                "sums_each",
            )  # fmt: skip
            common = {name: x for name, x in self.common.items() if name not in names}
            launch(
                replay_kernel, size * blocks.count(known), **common, **blocks.arguments(),
                **between, start=start, start_each=start.stride(0), share=self.kept.share,
                LEAST=least(self.delta.dtype),
            )  # fmt: skip
        blocks = blocks_of("vectors", self.common)
        bias_grad, received_grad, moved_grad = self.vectors
        launch(
            vectors_kernel, size, **self.common, **blocks.arguments(), **between,
            delta=self.delta, dots=self.dots, bias_grad=bias_grad, received_grad=received_grad,
            moved_grad=moved_grad, lam_grad=lam_grad, TIE=tie(self.delta.dtype), VECTOR=VECTOR,
        )  # fmt: skip

    def add_tokens(
        self, low: int, high: int, query_grad: Tensor, key_grad: Tensor, value_grad: Tensor
    ) -> None:
        """Gradients of the queries of a span, and what it adds to those of keys and values."""
        (size, n), block = self.delta.shape, self.common["block"]
        shared = self.common | {"low": low, "high": high, "dots": self.dots}
        if self.common["FEATURES"]:
            blocks = blocks_of("queries", self.common)
            launch(
                query_grad_kernel, size * (high - low) * blocks.count(block), **shared,
                **blocks.arguments(), grad=query_grad,
            )  # fmt: skip
        blocks = blocks_of("keys", self.common)
        launch(
            key_grad_kernel, size * blocks.count(min(high * block, n)), **shared,
            **blocks.arguments(), grad=key_grad, value_grad=value_grad,
        )  # fmt: skip

    def add_bias(self, low: int, high: int, grad: Tensor, index: Tensor | None) -> None:
        """What a span adds to the gradient of a float mask."""
        count, rows, columns = grad.shape
        device, n = grad.device, self.delta.shape[1]
        if index is None:
            index = torch.arange(count, device=device)
        # the heads of every mask, one mask after the other
        heads = index.argsort(stable=True)
        bounds = torch.arange(count + 1, device=device)
        blocks = blocks_of("bias", self.common)
        down = 1 if rows == 1 else (high - low) * blocks.count(self.common["block"])
        tiles = down * (1 if columns == 1 else -(-n // blocks.y))
        shared = {name: x for name, x in self.common.items() if name != "mask_index"}
        launch(
            bias_grad_kernel, count * tiles, **shared, **blocks.arguments(), low=low, high=high,
            dots=self.dots, heads=heads, first_heads=torch.searchsorted(index[heads], bounds),
            grad=grad, grad_rows=rows, grad_columns=columns,
        )  # fmt: skip
