"""Sorting four-digit numbers of handwritten digits from their order alone, without their values.

A small network reads every number as one scalar; the plan between scalars and increasing targets
says which rank each number has. The published rows for softmax and Sinkhorn give every number one
free logit per rank instead.
"""

import functools
import itertools
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

import bistoch
from bistoch.functional.hard import assign
from bistoch.lab.data import load
from bistoch.lab.drawing import PALETTE, QUIET, legend, row, tidy
from bistoch.lab.study import (
    Cell,
    Context,
    Result,
    Results,
    Settings,
    Study,
    Table,
    Verdict,
)
from bistoch.lab.train import Recipe, TensorTask, fit
from bistoch.lab.train.seeds import preserved_random_state, seed_all, seed_of

DIGITS = 4
# the share of sequences that come out in the right order: Grover et al., ICLR 2019, table 1
PUBLISHED = {
    "softmax, free logits": {3: 0.467, 5: 0.093, 7: 0.009, 9: 0.0, 15: 0.0},
    "balanced, free logits": {3: 0.462, 5: 0.038, 7: 0.001, 9: 0.0, 15: 0.0},
    "NeuralSort": {3: 0.930, 5: 0.837, 7: 0.738, 9: 0.649, 15: 0.386},
}
METHODS = ("balanced, one scalar", "softmax, one scalar", "balanced, free logits", "NeuralSort")
OURS, ROWS, FREE, NEURAL = METHODS
# those that decide come first
LENGTHS = (5, 3, 9, 7, 15)
RECIPE = Recipe(epochs=10, lr=3e-3)


@dataclass(frozen=True)
class Sizes:
    """Data, and the training of every network: an epoch has the same number of images for all."""

    data: str = "mnist"
    images: int = 60000
    batch_images: int = 150
    tested: int = 2000
    tau: float = 1.0
    iters: int = 10
    channels: tuple[int, int, int] = (16, 32, 48)
    recipe: Recipe = RECIPE


def sizes(settings: Settings) -> Sizes:
    """Those of a full run with its epochs, or of a smoke run."""
    if settings.smoke:
        recipe = replace(RECIPE, epochs=1)
        return Sizes("fashion-mnist-small", 600, 60, 20, channels=(4, 4, 8), recipe=recipe)
    recipe = replace(RECIPE, epochs=settings.epochs or RECIPE.epochs)
    return Sizes(recipe=recipe)


def cells(smoke: bool) -> list[Cell]:
    """All methods for every length of a sequence."""
    return [
        Cell(f"n = {n}: {method}", {"n": n, "method": method})
        for n in (LENGTHS[:2] if smoke else LENGTHS)
        for method in METHODS
    ]


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Train a network on sequences of one length; which test sequences come out sorted."""
    chosen: Sizes = context.sizes
    n, method = cell.options["n"], cell.options["method"]
    digits, labels, border = read_digits(chosen.data)
    generator = torch.Generator().manual_seed(seed_of("sequences", seed, n))
    # every epoch of the recipe has sequences of its own, so for the loop they are one epoch
    count = chosen.recipe.epochs * chosen.images // n
    splits = {
        "train": draw_sequences(labels, (0, border), count, n, generator),
        "test": draw_sequences(labels, (border, len(labels)), chosen.tested, n, generator),
    }

    def losses(output: Tensor, target: Tensor) -> Tensor:
        found = log_plan(output, method, chosen)
        return -found.gather(-1, target[..., None]).squeeze(-1).mean(-1)

    def scores(output: Tensor, target: Tensor) -> Tensor:
        return (decode(output, method) == target).all(-1).float()

    task = TensorTask("numbers", splits, losses=losses, scores=scores, score_name="sorted")
    with preserved_random_state():
        seed_all("weights", seed)
        model = Reader(digits, n if method == FREE else 1, chosen.channels)
    recipe = replace(chosen.recipe, epochs=1, batch_size=max(1, chosen.batch_images // n))
    fitted = fit(model, task, recipe, folder=context.folder, seed=seed, on_step=context.on_step)
    with torch.no_grad():
        parts = [model(x) for x in splits["test"][0].split(100)]
    output, target = torch.cat(parts), splits["test"][1]
    rank = decode(output, method)
    likely = log_plan(output, method, chosen).argmax(-1)
    return {
        # as texts, since a record has a line for every number of a list
        "sorted": _text((rank == target).all(-1)),
        "argmax": _text((likely == target).all(-1)),
        "elements": (rank == target).float().mean().item(),
        "collisions": (likely.sort(-1).values.diff(dim=-1) == 0).any(-1).float().mean().item(),
        "loss": fitted.curve[-1]["loss"],
        "images": count * n,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _text(hits: Tensor) -> str:
    return "".join("01"[hit] for hit in hits.long().tolist())


def hits(result: Result) -> Any:
    """Which test sequences came out sorted, as ones and zeros."""
    return list(map(int, result["sorted"]))


class Reader(nn.Module):
    """Reads numbers, given as places of their digits, as one scalar or several, and a temperature.

    The temperature is learned, the same for all numbers, and the last of the outputs.

    >>> digits = torch.rand(10, 14, 14)
    >>> Reader(digits, 1, (2, 3, 4))(torch.zeros(5, 3, 4, dtype=torch.long)).shape
    torch.Size([5, 3, 2])
    """

    digits: Tensor

    def __init__(
        self, digits: Float[Tensor, "count 14 14"], outputs: int, channels: tuple[int, int, int]
    ):
        super().__init__()
        first, second, third = channels
        # the pictures are data, not weights
        self.register_buffer("digits", digits, persistent=False)
        self.log_eps = nn.Parameter(torch.tensor([-1.6]))
        self.layers = nn.Sequential(
            nn.Conv2d(1, first, 5, 2, 2), nn.ReLU(), nn.BatchNorm2d(first),
            nn.Conv2d(first, second, 3, 2, 1), nn.ReLU(), nn.BatchNorm2d(second),
            nn.Conv2d(second, third, (4, 3), 1, (0, 1)), nn.ReLU(), nn.BatchNorm2d(third),
            nn.Flatten(), nn.Linear(14 * third, 64), nn.ReLU(), nn.Linear(64, outputs),
        )  # fmt: skip

    def forward(self, places: Int[Tensor, "b n 4"]) -> Float[Tensor, "b n more"]:
        """What is read of every number; its digits stand side by side in one picture."""
        pictures = self.digits[places].permute(0, 1, 3, 2, 4).flatten(3).flatten(0, 1)
        read = self.layers(pictures[:, None])
        eps = self.log_eps.exp().expand(len(read), 1)
        return torch.cat([read, eps], -1).unflatten(0, places.shape[:2])


@functools.cache
def read_digits(data: str) -> tuple[Float[Tensor, "count 14 14"], Int[Tensor, "count"], int]:
    """All digits at half their resolution, their labels, and where the test split begins."""
    found = load(data)
    pictures = torch.cat([torch.from_numpy(x) for x in (found.x_train, found.x_test)])
    labels = torch.cat([torch.from_numpy(y) for y in (found.y_train, found.y_test)])
    return functional.avg_pool2d(pictures.float() / 255, 2), labels, len(found.x_train)


def draw_sequences(
    labels: Int[Tensor, "digits"], among: tuple[int, int], count: int, n: int,
    generator: torch.Generator,
) -> tuple[Int[Tensor, "count n 4"], Int[Tensor, "count n"]]:  # fmt: skip
    """Sequences of numbers, as places of their digits, and the rank of every number.

    >>> places, rank = draw_sequences(torch.tensor([0, 5]), (0, 2), 1, 3, torch.Generator())
    >>> places.shape, sorted(rank[0].tolist())
    (torch.Size([1, 3, 4]), [0, 1, 2])
    """
    places = torch.randint(*among, (count, n, DIGITS), generator=generator)
    value = (labels[places] * torch.tensor([1000, 100, 10, 1])).sum(-1)
    # equal numbers are rare; the first of them ranks lower
    return places, value.argsort(dim=-1, stable=True).argsort(-1)


def log_plan(
    output: Float[Tensor, "b n outputs"], method: str, chosen: Sizes
) -> Float[Tensor, "b n n"]:
    """The logarithm of how likely every number has every rank."""
    read, eps = output[..., :-1], output[..., -1:]
    if method == NEURAL:
        return neural_sort(read.squeeze(-1), chosen.tau)
    scores = read if method == FREE else -(read - torch.linspace(-1, 1, read.shape[-2])).square()
    if method == ROWS:
        return (scores / eps).log_softmax(-1)
    return bistoch.log_balance(scores / eps, iters=chosen.iters)


def neural_sort(scalar: Float[Tensor, "b n"], tau: float) -> Float[Tensor, "b n n"]:
    """Log plan of NeuralSort, numbers by ranks, the lowest first.

        P[i] = softmax(((n + 1 - 2 i) s - A 1) / tau),   A_jk = |s_j - s_k|,   i = 1 the highest

    >>> neural_sort(torch.tensor([[3.0, 1.0, 2.0]]), 0.1).exp().round().argmax(-1)
    tensor([[2, 0, 1]])
    """
    n = scalar.shape[-1]
    spread = (scalar[..., None] - scalar[..., None, :]).abs().sum(-1)
    factor = n + 1 - 2 * torch.arange(n, 0, -1)
    scores = (factor[:, None] * scalar[..., None, :] - spread[..., None, :]) / tau
    return scores.log_softmax(-1).mT


def decode(output: Float[Tensor, "b n outputs"], method: str) -> Int[Tensor, "b n"]:
    """The rank of every number: by sorting scalars, or by the best assignment of free logits."""
    if method == FREE:
        return assign(output[..., :-1])
    return output[..., 0].argsort(-1).argsort(-1)


def lengths_of(results: Results) -> list[int]:
    """The lengths that were run, ascending."""
    return sorted({row.options["n"] for row in results.rows})


def _share(results: Results, n: int, method: str, key: str) -> float | None:
    texts = results.values(f"n = {n}: {method}", key) if n in lengths_of(results) else []
    return mean(map(int, itertools.chain(*texts))) if texts else None


def tables(results: Results) -> list[Table]:
    """Sorted sequences beside the published shares; then elements, argmax and collisions."""
    lengths = lengths_of(results)

    def shown(share: float | None) -> str:
        return "" if share is None else f"{share:.3f}"

    lines = [
        [method, *(shown(_share(results, n, method, "sorted")) for n in lengths)]
        for method in METHODS
    ]
    lines += [
        [f"published: {method}", *(shown(known[n]) for n in lengths)]
        for method, known in PUBLISHED.items()
    ]
    further = []
    for n, method in itertools.product(lengths, METHODS):
        name = f"n = {n}: {method}"
        if not results.by_seed(name):
            continue
        share = _share(results, n, method, "argmax")
        elements, collisions = (results.mean(name, key) for key in ("elements", "collisions"))
        against = results.difference(f"n = {n}: {OURS}", name, hits)
        lead = "" if method == OURS or against is None else against.text()
        further.append([name, shown(share), shown(collisions), shown(elements), lead])
    head = ["cell", "sorted by argmax", "with collisions", "elements", f"lead of {OURS}"]
    return [
        Table(["method", *(f"n = {n}" for n in lengths)], lines, NOTE),
        Table(head, further, "Argmax: every number takes its likeliest rank, twice if need be."),
    ]


NOTE = (
    "Share of test sequences in exactly the right order: scalars are sorted, free logits assigned. "
    "The published networks read 28 x 112 pixels, ours 14 x 56: compare ours with ours, and with "
    "the published shares only loosely."
)


def checks(results: Results) -> list[Verdict]:
    """Goals for our own shares, and whether one scalar and balance are ahead."""
    verdicts = []
    for n, goal in ((3, 0.9), (5, 0.8)):
        share = _share(results, n, OURS, "sorted")
        if share is not None:
            verdict = "yes" if share > goal else "no"
            verdicts.append(
                Verdict(f"n = {n}: more than {goal} are sorted", f"{share:.3f}", verdict)
            )
    for n in lengths_of(results):
        ours = f"n = {n}: {OURS}"
        for method in METHODS[1:]:
            text = f"n = {n}: more are sorted than with {method}"
            verdicts.append(results.claim(text, ours, f"n = {n}: {method}", hits, larger=True))
    return verdicts


def figure(results: Results) -> Any:
    """Sorted sequences over the length, measured and published."""
    made, (axes,) = row(1, width=5.4, height=3.6)
    lengths = lengths_of(results)
    for method, colour in zip(METHODS, PALETTE, strict=False):
        shares = [(n, _share(results, n, method, "sorted")) for n in lengths]
        known = [(n, share) for n, share in shares if share is not None]
        axes.plot(*zip(*known, strict=True), color=colour, marker="o", markersize=4, label=method)
    for (method, published), style in zip(PUBLISHED.items(), (":", "-.", "--"), strict=True):
        axes.plot(lengths, [published[n] for n in lengths], style, color=QUIET, marker="x",
                  label=f"published: {method}")  # fmt: skip
    tidy(axes, "sequences in the right order", "numbers in a sequence")
    axes.set(ylim=(-0.02, 1), xticks=lengths)
    legend(axes)
    return made


STUDY = Study(
    name="sorting",
    title="Sorting handwritten numbers",
    question="Can a network learn to sort when balance turns its scalars into ranks?",
    source="Grover et al., NeuralSort, ICLR 2019, arXiv 1903.08850; Cuturi et al., NeurIPS 2019",
    about="Numbers of four MNIST digits, 14 x 56 pixels; only their order in the sequence is known "
    "in training. For one seed and length all methods see the same sequences. Balanced: "
    "bistoch.balance of -(s_i - y_j)² / eps for the scalar s_i of a number and increasing targets "
    "y_j, with a learned eps; softmax: rows of the same scores; free logits: one per rank, "
    "balanced. The loss is the cross-entropy of the ranks. Intervals are those of the bootstrap "
    "over test sequences.",
    sizes=sizes,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Share of test sequences in the right order, by length.",
    epochs=RECIPE.epochs,
)
