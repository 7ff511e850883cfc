"""Delta attention as a module: it reads whole sequences, and goes on from there row by row."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from bistoch.functional import OPERATORS, delta_step, inputs
from bistoch.functional.delta.decode import CACHES
from bistoch.functional.inputs import Mask
from bistoch.nn.operators import OperatorModule


class Delta(OperatorModule):
    """Sparse causal rows, corrected by a few dense ones.

    Args:
        window, sink, stride, correction, tail, inner, backend: as for `bistoch.delta_attention`.
        decode: how rows that come after a whole sequence see its keys: "dense", all of them, or
            "sparse", sink and window.

    >>> import torch
    >>> operator = Delta(window=16, sink=2, decode="sparse")
    >>> operator
    delta(window=16, sink=2, decode='sparse')
    >>> q, k, v = torch.randn(3, 2, 8, 50, 4).unbind()
    >>> operator(q, k, v).shape, operator.next_rows(q[..., -1:, :], k, v).shape
    (torch.Size([2, 8, 50, 4]), torch.Size([2, 8, 1, 4]))
    """

    def __init__(
        self,
        window: int = 256,
        sink: int = 16,
        stride: int = 16,
        correction: str = "delta",
        tail: int = 0,
        inner: str = "softmax",
        backend: str = "auto",
        decode: str = "dense",
    ) -> None:
        inputs.check_choice("Delta", "decode", decode, CACHES)
        super().__init__(
            OPERATORS["delta"], window=window, sink=sink, stride=stride, correction=correction,
            tail=tail, inner=inner, backend=backend,
        )  # fmt: skip
        self.decode = decode

    def next_rows(
        self,
        query: Float[Tensor, "*#b n d"],
        key: Float[Tensor, "*#b m d"],
        value: Float[Tensor, "*#b m e"],
        *,
        mask: Mask | None = None,
    ) -> Float[Tensor, "*b n e"]:
        """The rows of new tokens over a cache, as `bistoch.delta_step`."""
        options = {name: getattr(self, name) for name in ("window", "sink", "inner")}
        return delta_step(query, key, value, cache=self.decode, mask=mask, **options)

    def _written(self) -> dict[str, Any]:
        written = super()._written()
        return written if self.decode == "dense" else written | {"decode": self.decode}
