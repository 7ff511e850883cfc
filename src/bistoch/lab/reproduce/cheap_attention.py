"""Cheaper attention in the place of softmax: its multiply-adds, and two forms to compare with.

Forms here are for models whose plans have no mask; they are modules as `bistoch.nn.Attention` takes
them.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from bistoch.functional import OPERATORS
from bistoch.functional.monarch.layout import Cut, default_block, lay_out
from bistoch.nn import OperatorModule
from bistoch.nn.build import build_operator


def softmax_work(n: int, d: int) -> int:
    """Multiply-adds of one head of softmax: two products of n x n with d features.

    >>> 144 * softmax_work(197, 64)
    715327488
    """
    return 2 * n * n * d


def monarch_work(n: int, d: int, updates: int, cut: Cut) -> int:
    """Multiply-adds of one head of Monarch attention.

    Groups of queries meet all keys three times in the first update, for scores, slopes and answers,
    and twice in every other; blocks meet all queries twice in every update.

    >>> 144 * monarch_work(197, 64, 2, Cut((14,), "pre"))
    251596800
    """
    layout = lay_out(n, n, cut, torch.device("cpu"))
    within = layout.members.shape[0] * layout.keys.numel()
    between = layout.keys.shape[0] * layout.members.numel()
    return ((2 * updates + 1) * within + 2 * updates * between) * d


def work_of(operator: nn.Module, n: int, d: int) -> int:
    """Multiply-adds of one head of a module: softmax, monarch, or one of this file."""
    if isinstance(operator, Nystroem | Window):
        return operator.work(n, d)
    if not isinstance(operator, OperatorModule) or operator.row.name not in ("softmax", "monarch"):
        raise ValueError(f"work_of: the multiply-adds of {operator!r} are not known")
    if operator.row.name == "softmax":
        return softmax_work(n, d)
    options = operator.options()
    grid = options.get("grid")
    block = options.get("block") or default_block(n, n, grid)
    sizes = (block,) if isinstance(block, int) else tuple(block)
    cut = Cut(sizes, options.get("pad", "post"), grid, options.get("tiles", (1, 1)))
    return monarch_work(n, d, options.get("iters", 2), cut)


class Form(nn.Module):
    """What stands in the place of an operator; the tokens it is given have no padding."""

    row, mesh = OPERATORS["softmax"], None
    causal, rows_are_independent = False, False


class Nystroem(Form):
    """Attention through the means of `rank` runs of tokens, and the pseudo-inverse between them.

        P = softmax(q K'^T) pinv(softmax(Q' K'^T)) softmax(Q' k^T),   Q', K' = means of runs

    >>> q, k, v = torch.randn(3, 2, 12, 4).unbind()
    >>> exact = scaled_dot_product_attention(q, k, v)
    >>> torch.allclose(Nystroem(12)(q, k, v), exact, atol=1e-3)
    True

    Reference: Xiong et al., Nystromformer, AAAI 2021.
    """

    def __init__(self, rank: int):
        super().__init__()
        self.rank = rank

    def forward(self, query, key, value, **masks: None) -> Float[Tensor, "*b n e"]:
        """Attend, from right to left, so that nothing has n x n entries."""
        left, middle, right = self._factors(query, key)
        return left @ (middle @ (right @ value))

    def plan(self, query, key, **masks: None) -> Float[Tensor, "*b n m"]:
        """The product of the three factors."""
        left, middle, right = self._factors(query, key)
        return left @ middle @ right

    def _factors(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys = (
            torch.stack([part.mean(-2) for part in x.tensor_split(self.rank, -2)], -2)
            for x in (query, key)
        )
        scale = 1 / math.sqrt(query.shape[-1])
        left, middle, right = (
            (scale * a @ b.mT).softmax(-1)
            for a, b in ((query, keys), (queries, keys), (queries, key))
        )
        return left, torch.linalg.pinv(middle), right

    def work(self, n: int, d: int) -> int:
        """Multiply-adds: four thin products, and those of rank x rank."""
        return 4 * n * self.rank * d + 2 * self.rank**2 * d + self.rank**3


class Window(Form):
    """Softmax over the tokens within a distance: of places, or of rows and of columns on a grid.

    It is computed with a mask, and so takes the time of softmax; its work is what a kernel does.

    >>> Window(1, 6).allowed.sum(-1)
    tensor([2, 3, 3, 3, 3, 2])
    """

    def __init__(self, reach: int, *grid: int):
        super().__init__()
        axes = torch.meshgrid(*(torch.arange(size) for size in grid), indexing="ij")
        places = torch.stack([axis.flatten() for axis in axes], -1)
        far = (places[:, None] - places[None]).abs().amax(-1)
        self.allowed: Bool[Tensor, "n n"] = far <= reach

    def forward(self, query, key, value, **masks: None) -> Float[Tensor, "*b n e"]:
        """Attend to what is near."""
        return scaled_dot_product_attention(query, key, value, attn_mask=self.allowed)

    def plan(self, query, key, **masks: None) -> Float[Tensor, "*b n m"]:
        """The softmax of what is near."""
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return scores.masked_fill(~self.allowed, -torch.inf).softmax(-1)

    def work(self, n: int, d: int) -> int:
        """Multiply-adds of the pairs that are near."""
        return 2 * int(self.allowed.sum()) * d


def make_form(text: str, heads: int, size: int, *grid: int) -> nn.Module:
    """A form from its text: an operator, "nystroem(rank)" or "window(reach)".

    >>> round(make_form("window(1)", 2, 8, 3, 3).work(9, 8) / softmax_work(9, 8), 2)
    0.6
    """
    name, _, rest = text.partition("(")
    if name == "nystroem":
        return Nystroem(int(rest[:-1]))
    return Window(int(rest[:-1]), *grid) if name == "window" else build_operator(text, heads, size)
