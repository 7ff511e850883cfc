"""A small Transformer whose parts can be removed, trained to classify pictures row by row."""

import functools
import itertools
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bistoch.lab import data
from bistoch.lab.study import Context, Result
from bistoch.nn import Attention

# what a block may have besides attention
PARTS = ("skip", "mlp", "norm")
# the elasticities that are compared, by name
LAMS = {"softmax": 0.0, "elastic 0.25": 0.25, "elastic 0.5": 0.5, "elastic 0.75": 0.75,
        "sinkhorn": 1.0}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """The sizes of a network and of its training."""

    depth: int = 6
    dim: int = 64
    heads: int = 4
    pictures: int = 4000
    epochs: int = 4
    batch: int = 64
    rate: float = 1e-3


# what is trained, and what a smoke run trains
USUAL = Shape()
SMALL = Shape(depth=2, dim=16, heads=2, pictures=320, epochs=1)


# from free columns to balanced ones: dark to bright, of the palette of Okabe and Ito
COLOURS = dict(zip(LAMS, ("#000000", "#0072b2", "#009e73", "#56b4e9", "#d55e00"), strict=True))


def operator_text(name: str, iters: int = 10, scale: float = 1.0) -> str:
    """The operator of a compared elasticity, with scores multiplied by `scale`.

    >>> operator_text("sinkhorn")
    'elastic(lam=1.0, iters=10, eps=1.0)'
    """
    lam = LAMS[name]
    if lam == 0:
        return f"softmax(eps={1 / scale})"
    return f"elastic(lam={lam}, iters={iters}, eps={1 / scale})"


class Block(nn.Module):
    """Attention and a small network, each behind a norm and beside a skip, if they are there."""

    def __init__(self, dim: int, heads: int, operator: str):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.attention = Attention(dim, heads, operator=operator)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.parts: tuple[str, ...] = PARTS

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Run the parts that are there."""
        for norm, layer in zip(self.norms, (self.attention, self.mlp), strict=True):
            if layer is self.mlp and "mlp" not in self.parts:
                continue
            result = layer(norm(x) if "norm" in self.parts else x)
            x = x + result if "skip" in self.parts else result
        return x


class Network(nn.Module):
    """A classifier of pictures: every row of pixels is a token; the mean token is classified.

    Args:
        shape: its sizes.
        operator: text for `bistoch.nn.Attention`.

    >>> network = Network(Shape(depth=2, dim=8, heads=2), "softmax")
    >>> network(torch.rand(3, 28, 28)).shape
    torch.Size([3, 10])
    """

    def __init__(self, shape: Shape, operator: str):
        super().__init__()
        self.embed = nn.Linear(28, shape.dim)
        self.positions = nn.Parameter(0.5 * torch.randn(28, shape.dim))
        blocks = [Block(shape.dim, shape.heads, operator) for _ in range(shape.depth)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(shape.dim)
        self.classify = nn.Linear(shape.dim, 10)

    def remove(self, *missing: str) -> None:
        """Run without these parts from now on."""
        left = tuple(part for part in PARTS if part not in missing)
        for block in self.modules():
            if isinstance(block, Block):
                block.parts = left

    def forward(self, pictures: Float[Tensor, "b 28 28"]) -> Float[Tensor, "b 10"]:
        """The scores of the classes."""
        x = self.embed(pictures) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.classify(self.norm(x).mean(-2))


def load_pictures(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test pictures, in [-1, 1], and their classes: FashionMNIST, the shipped part."""
    shipped = _shipped()
    x_train, x_test = (
        torch.from_numpy(x).float().div(127.5).sub(1) for x in (shipped.x_train, shipped.x_test)
    )
    y_train, y_test = (torch.as_tensor(y).long() for y in (shipped.y_train, shipped.y_test))
    return x_train[:count], y_train[:count], x_test, y_test


@functools.cache
def _shipped() -> data.Dataset:
    return data.load("fashion-mnist-small")


def random_network(shape: Shape, operator: str, seed: int) -> Network:
    """A network before training, in float64, with scores of about one where tokens are normed."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        network = Network(shape, operator).double().eval()
        for block in network.blocks:
            for linear in (m for m in block.modules() if isinstance(m, nn.Linear)):
                nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
                nn.init.zeros_(linear.bias)
        nn.init.normal_(network.embed.weight, std=network.embed.in_features**-0.5)
    return network


def trained_classifier(shape: Shape, operator: str, context: Context) -> tuple[Network, Result]:
    """A network trained on pictures, and its test accuracy; trained once for all studies."""
    x_train, y_train, x_test, y_test = load_pictures(shape.pictures)
    text = operator_text(operator)

    def train(network: Network) -> dict[str, float]:
        generator = torch.Generator().manual_seed(context.seed)
        _train(network, x_train, y_train, shape, generator)
        return {"accuracy": _accuracy(network.eval(), x_test, y_test)}

    return context.network(
        "classifier", {"shape": shape, "operator": text}, lambda: Network(shape, text), train
    )


def _train(
    network: Network,
    pictures: Float[Tensor, "N 28 28"],
    classes: Int[Tensor, "N"],
    shape: Shape,
    generator: torch.Generator,
) -> None:
    steps = shape.epochs * (len(pictures) // shape.batch)
    optimizer = torch.optim.AdamW(network.parameters(), lr=shape.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, shape.rate, total_steps=steps + 1)
    batches = itertools.chain.from_iterable(
        torch.randperm(len(pictures), generator=generator).split(shape.batch)
        for _ in range(shape.epochs + 1)
    )
    for rows in itertools.islice(batches, steps):
        loss = nn.functional.cross_entropy(network(pictures[rows]), classes[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def _accuracy(network: Network, pictures: Tensor, classes: Tensor) -> float:
    guesses = torch.cat([network(some).argmax(-1) for some in pictures.split(250)])
    return (guesses == classes).double().mean().item()
