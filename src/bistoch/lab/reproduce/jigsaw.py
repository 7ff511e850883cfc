"""A jigsaw of sixteen pieces: where every piece of a shuffled picture belongs.

A small Transformer looks at all pieces at once, without their places, and scores every piece for
every place. Softmax may send two pieces to one place; balance asks for one each.
"""

import functools
import itertools
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor, nn

import bistoch
from bistoch.functional.hard import assign
from bistoch.lab.data import load
from bistoch.lab.drawing import PALETTE, row, tidy
from bistoch.lab.study import Cell, Context, Result, Results, Settings, Study, Table, Verdict
from bistoch.lab.train import Recipe, TensorTask, fit
from bistoch.lab.train.seeds import preserved_random_state, seed_all, seed_of
from bistoch.models.sets import MAB

SIDE = 4
PIECES = SIDE**2
METHODS = ("softmax", "balanced")
RECIPE = Recipe(epochs=30, batch_size=50, lr=2e-3)


@dataclass(frozen=True)
class Sizes:
    """Data, network and training; in every epoch all pictures are shuffled anew."""

    data: str = "fashion-mnist-small"
    dim: int = 64
    depth: int = 2
    heads: int = 4
    iters: int = 10
    recipe: Recipe = RECIPE


def sizes(settings: Settings) -> Sizes:
    """Those of a full run with its epochs, or of a smoke run."""
    if settings.smoke:
        return Sizes("shipped sample", dim=8, depth=1, heads=2, recipe=replace(RECIPE, epochs=1))
    return Sizes(recipe=replace(RECIPE, epochs=settings.epochs or RECIPE.epochs))


def cells(smoke: bool) -> list[Cell]:
    """One network for every method; pieces are placed in two ways afterwards."""
    return [Cell(method, {"method": method}) for method in METHODS]


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Train a network; which test pictures are whole again, by argmax and by assignment."""
    chosen: Sizes = context.sizes
    method = cell.options["method"]
    train, test = read_pieces(chosen.data)
    generator = torch.Generator().manual_seed(seed_of("shuffles", seed))
    splits = {
        "train": shuffle(train.repeat(chosen.recipe.epochs, 1, 1), generator),
        "test": shuffle(test, generator),
    }

    def losses(output: Tensor, target: Tensor) -> Tensor:
        found = log_plan(output, method, chosen.iters)
        return -found.gather(-1, target[..., None]).squeeze(-1).mean(-1)

    def scores(output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(-1) == target).float().mean(-1)

    task = TensorTask("pieces", splits, losses=losses, scores=scores, score_name="pieces")
    with preserved_random_state():
        seed_all("weights", seed)
        model = Placer(train.shape[-1], chosen)
    # every epoch of the recipe has shuffles of its own, so for the loop they are one epoch
    recipe = replace(chosen.recipe, epochs=1)
    fitted = fit(model, task, recipe, folder=context.folder, seed=seed, on_step=context.on_step)
    pieces, target = splits["test"]
    with torch.no_grad():
        output = torch.cat([model(some) for some in pieces.split(250)])
        found = log_plan(output, method, chosen.iters)
    placed = {"argmax": found.argmax(-1), "assigned": assign(found)}
    likely = placed["argmax"].sort(-1).values
    return {
        "collisions": (likely.diff(dim=-1) == 0).any(-1).float().mean().item(),
        "pieces": {way: (place == target).float().mean().item() for way, place in placed.items()},
        # as texts, since a record has a line for every number of a list
        "whole": {
            way: "".join("01"[hit] for hit in is_whole(pieces, target, place).long().tolist())
            for way, place in placed.items()
        },
        "loss": fitted.curve[-1]["loss"],
        "steps": fitted.steps,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


class Placer(nn.Module):
    """Scores of every piece for every place, from all pieces of a picture, in any order.

    >>> Placer(49, Sizes(dim=8, heads=2))(torch.zeros(5, 16, 49, dtype=torch.uint8)).shape
    torch.Size([5, 16, 16])
    """

    def __init__(self, pixels: int, chosen: Sizes):
        super().__init__()
        dim = chosen.dim
        self.embed = nn.Sequential(nn.Linear(pixels, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.blocks = nn.ModuleList(MAB(dim, chosen.heads, "softmax") for _ in range(chosen.depth))
        self.read = nn.Linear(dim, PIECES)

    def forward(self, pieces: UInt8[Tensor, "b 16 pixels"]) -> Float[Tensor, "b 16 16"]:
        """Pieces by places."""
        x = self.embed(pieces.float() / 255)
        for block in self.blocks:
            x = block(x, x)
        return self.read(x)


@functools.cache
def read_pieces(data: str) -> tuple[UInt8[Tensor, "a 16 pixels"], UInt8[Tensor, "b 16 pixels"]]:
    """The pieces of all training and test pictures, in order."""
    sample = slice(100 if data == "shipped sample" else None)
    found = load("fashion-mnist-small" if data == "shipped sample" else data)
    return cut(found.x_train[sample]), cut(found.x_test[sample])


def cut(pictures: Any) -> Shaped[Tensor, "b 16 pixels"]:
    """Pictures cut into four rows of four pieces, row by row.

    >>> import numpy as np
    >>> cut(np.arange(64).reshape(1, 8, 8))[0, 1]
    tensor([ 2,  3, 10, 11])
    """
    x = torch.as_tensor(pictures)
    x = x[..., None] if x.ndim == 3 else x
    side = x.shape[1] // SIDE
    return x.unfold(1, side, side).unfold(2, side, side).flatten(1, 2).flatten(2)


def shuffle(
    pieces: UInt8[Tensor, "b 16 pixels"], generator: torch.Generator
) -> tuple[UInt8[Tensor, "b 16 pixels"], Int[Tensor, "b 16"]]:
    """Pieces in random order, and the place of each."""
    place = torch.rand(pieces.shape[:2], generator=generator).argsort(-1)
    return pieces.gather(1, place[..., None].expand_as(pieces)), place


def log_plan(scores: Float[Tensor, "b n n"], method: str, iters: int) -> Float[Tensor, "b n n"]:
    """The logarithm of how likely every piece has every place."""
    if method == "softmax":
        return scores.log_softmax(-1)
    return bistoch.log_balance(scores, iters=iters)


def is_whole(
    pieces: UInt8[Tensor, "b n pixels"], target: Int[Tensor, "b n"], place: Int[Tensor, "b n"]
) -> Tensor:
    """Whether pictures look like the originals: equal pieces, black ones mostly, may change places.

    No place may stay empty unless it is black.
    """

    def assembled(where: Tensor) -> Tensor:
        empty = torch.zeros_like(pieces)
        return empty.scatter(1, where[..., None].expand_as(pieces), pieces)

    original = assembled(target)
    wanted = original.gather(1, place[..., None].expand_as(pieces))
    fits = (wanted == pieces).flatten(1).all(-1)
    return fits & (assembled(place) == original).flatten(1).all(-1)


def whole(way: str) -> Any:
    """A metric: which test pictures are whole, as ones and zeros."""
    return lambda result: list(map(int, result["whole"][way]))


WAYS = {"argmax": "", "assigned": " + Hungarian"}


def tables(results: Results) -> list[Table]:
    """Whole pictures and pieces, for both methods and both ways to place pieces."""
    lines = []
    for way, method in itertools.product(WAYS, METHODS):
        share = mean(itertools.chain(*results.values(method, whole(way))))
        pieces = results.mean(method, f"pieces.{way}")
        collisions = "" if WAYS[way] else f"{100 * results.mean(method, 'collisions'):.1f}"
        lines.append([method + WAYS[way], f"{100 * share:.1f}", f"{100 * pieces:.1f}", collisions])
    head = ["method", "whole pictures (%)", "pieces (%)", "two pieces in one place (%)"]
    return [Table(head, lines, "Test pictures; a piece counts if its own place was found.")]


def checks(results: Results) -> list[Verdict]:
    """Balance is ahead of softmax, each placed in the same way."""
    return [
        results.claim(
            f"balanced{tail} makes more pictures whole than softmax{tail}", "balanced", "softmax",
            whole(way), larger=True, unit="points", form=".1f", scale=100,
        )
        for way, tail in WAYS.items()
    ]  # fmt: skip


def figure(results: Results) -> Any:
    """Whole pictures as bars."""
    made, (axes,) = row(1, width=5.0, height=2.6)
    lines = tables(results)[0].rows
    axes.barh(
        [line[0] for line in lines][::-1], [float(str(line[1])) for line in lines][::-1],
        color=[PALETTE[1], PALETTE[0]] * 2,
    )  # fmt: skip
    tidy(axes, "whole pictures (%)")
    return made


STUDY = Study(
    name="jigsaw",
    title="A jigsaw of sixteen pieces",
    question="Does balance help to put pieces where they belong?",
    source="the task of Mena et al., Gumbel-Sinkhorn, ICLR 2018; our own set-up",
    about="Pictures of FashionMNIST (the part that comes with the package) cut into 4 x 4 pieces "
    "and shuffled. A Transformer without positions scores pieces for places; the loss is the "
    "cross-entropy of the right place under the softmax of a row, or under the balanced plan. "
    "A place is the likeliest one, or that of the best assignment. Both networks start from the "
    "same weights and see the same shuffles. Intervals are those of the bootstrap over pictures.",
    sizes=sizes,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Test pictures that look like the original again.",
    epochs=RECIPE.epochs,
)
