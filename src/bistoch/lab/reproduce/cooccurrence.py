"""Two words that occur together: how one attention layer learns them, and what balance takes away.

A sample is positive if it holds both of two words. One layer of attention with a linear read-out
learns it by gradient descent, first by what it reads, then by where it attends. The published
analysis is for softmax; here other operators take its place.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

import bistoch
from bistoch.lab.drawing import PALETTE, legend, row, tidy
from bistoch.lab.reproduce.cooccurrence_layer import (
    FOLLOWED,
    KINDS,
    Layer,
    Sizes,
    all_right,
    attention_moves,
    balanced_pulls,
    draw_samples,
    followed,
    hump,
    look,
    margins_hold,
    points,
    signs_hold,
)
from bistoch.lab.study import Cell, Column, Context, Result, Results, Study, Table, Verdict

SOFTMAX, BALANCED = "lam 0 (softmax)", "lam 1 (balanced)"
FULL, SMOKE = Sizes(), Sizes(steps=60, test=60, points=12)
OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    SOFTMAX: ("softmax", {}),
    **{f"lam {lam}": ("elastic", {"lam": lam}) for lam in (0.25, 0.5, 0.75, 0.9)},
    BALANCED: ("elastic", {"lam": 1.0}),
    "sigmoid": ("sigmoid", {}),
    "softpick": ("softpick", {}),
    "sparsemax": ("sparsemax", {}),
}
# enough for five words to be balanced to rounding
ITERS = 200


def cells(smoke: bool) -> list[Cell]:
    """Every operator with the published read-out; two of them read from the common word alone."""
    every = [
        Cell(name, {"operator": operator, "options": options, "every_query": True})
        for name, (operator, options) in OPERATORS.items()
    ]
    one = [
        Cell(one_query(name), {"operator": OPERATORS[name][0], "options": OPERATORS[name][1],
                               "every_query": False})
        for name in (SOFTMAX, BALANCED)
    ]  # fmt: skip
    return every + one


def one_query(name: str) -> str:
    """The name of a cell that reads one row of the plan.

    >>> one_query("softpick")
    'softpick, one query'
    """
    return f"{name}, one query"


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Train by gradient descent on all samples, and follow losses, scores and gradients."""
    sizes, generator = context.sizes, torch.Generator().manual_seed(seed)
    samples = draw_samples(sizes.samples, sizes, generator)
    unseen = draw_samples(sizes.test, sizes, generator)
    layer = Layer(sizes, plan_of(cell), cell.options["every_query"], generator)
    before = layer.scores()
    looked, trace = set(points(sizes)), []
    for step in range(sizes.steps + 1):
        output = layer(samples.words)
        losses = softplus(-samples.label * output)
        if step in looked:
            trace.append({"step": step} | look(layer, samples, output, losses, before))
            context.step(step, sizes.steps, f"loss {trace[-1]['loss']:.4f}")
        if step < sizes.steps:
            slopes = torch.autograd.grad(losses.mean(), layer.weights, allow_unused=True)
            with torch.no_grad():
                for weight, slope in zip(layer.weights, slopes, strict=True):
                    if slope is not None:
                        weight -= sizes.rate * slope
    with torch.no_grad():
        output = layer(unseen.words)
        test = softplus(-unseen.label * output).mean()
        right = (output * unseen.label > 0).double().mean()
    moved = layer.scores() - before
    return {
        "trace": trace, "loss": trace[-1]["loss"], "test_loss": float(test),
        "test_accuracy": float(right), "moved": float(followed(moved).abs().mean()),
        "other_moved": float(moved[3:, 3:].abs().mean()), "scores": float(before.abs().mean()),
    }  # fmt: skip


def plan_of(cell: Cell) -> Callable[[Tensor, Tensor], Tensor]:
    """The plan of a cell, balanced to rounding where it is balanced."""
    operator, options = bistoch.OPERATORS[cell.options["operator"]], cell.options["options"]
    if operator.name != "elastic":
        return lambda query, key: operator.plan(query, key, **options)
    # as elastic_plan, by the kernels for many small matrices
    return lambda query, key: bistoch.balance(
        query @ key.mT / query.shape[-1] ** 0.5, iters=ITERS, omega=1.0, **options
    )


def checks(results: Results) -> list[Verdict]:
    """The published statements on softmax, and the theorem on balance."""

    def every(name: str, holds: Callable[[Result], bool], text: str, shown: Callable) -> Verdict:
        found = list(results.by_seed(name).values())
        measured = ", ".join(shown(result) for result in found)
        return Verdict(text, measured, "yes" if all(map(holds, found)) else "no")

    def steps(result: Result) -> str:
        return f"{all_right(result):g} before {attention_moves(result):g}"

    return [
        every(SOFTMAX, lambda r: all_right(r) < attention_moves(r),
              "softmax: all samples are right before attention moves by a tenth (steps)", steps),
        every(SOFTMAX, lambda r: signs_hold(r) == 4,
              "softmax: C12 and C21 rise, C31 and C32 fall (signs that hold, of 4)",
              lambda r: f"{signs_hold(r):g}"),
        every(SOFTMAX, lambda r: hump(r) > 0.01,
              "softmax: the loss of one-word samples first rises (by)", lambda r: f"{hump(r):.0%}"),
        every(SOFTMAX, lambda r: balanced_pulls(r) >= 0.95,
              "softmax: gradients of kinds stay balanced after the first phase (share of points)",
              lambda r: f"{balanced_pulls(r):.0%}"),
        every(SOFTMAX, lambda r: margins_hold(r) == 1,
              "softmax: in the end the read-out of three words has the margins (1 is yes)",
              lambda r: f"{margins_hold(r):g}"),
        every(SOFTMAX, lambda r: r["other_moved"] < r["moved"] / 3,
              "softmax: scores of other words move by less than a third of the four (ratio)",
              lambda r: f"{r['other_moved'] / max(r['moved'], 1e-30):.3g}"),
        every(BALANCED, lambda r: r["moved"] < 1e-6 * r["scores"],
              "balanced, every query read: attention is never moved (change over score)",
              lambda r: f"{r['moved'] / r['scores']:.0e}"),
        every(one_query(BALANCED), lambda r: r["moved"] > 1e-2 * r["scores"],
              "balanced, one query read: attention is moved (change over score)",
              lambda r: f"{r['moved'] / r['scores']:.2f}"),
        results.claim("balanced has a lower test loss than softmax, every query read",
                      BALANCED, SOFTMAX, "test_loss", larger=False),
        results.claim("balanced has a lower test loss than softmax, one query read",
                      one_query(BALANCED), one_query(SOFTMAX), "test_loss", larger=False),
    ]  # fmt: skip


def tables(results: Results) -> list[Table]:
    """One line per operator."""
    columns = (
        Column("change of the four scores", "moved"), Column("of other words", "other_moved"),
        Column("signs, of 4", signs_hold, ".1f"), Column("all right from step", all_right, ".0f"),
        Column("hump", hump, ".2f"), Column("training loss", "loss", ".4f"),
        Column("test loss", "test_loss", ".4f", compared=True),
        Column("test accuracy", "test_accuracy", ".4f"),
    )  # fmt: skip
    return [
        results.table(
            columns,
            "Change: mean absolute change of the scores of the four pairs of words that the "
            "analysis names, and of pairs of other words. Hump: how far the loss of samples with "
            "one of the two words rises above its start.",
            baseline=SOFTMAX,
        )
    ]


def figure(results: Results) -> Any:
    """The four coefficients and the losses of softmax, and what is left of both as lam grows."""
    made, (left, middle, right) = row(3, width=4.0, height=3.0)
    trace = next(iter(results.by_seed(SOFTMAX).values()))["trace"]
    steps = [point["step"] + 1 for point in trace]
    for number, name in enumerate(FOLLOWED):
        left.plot(steps, [point["coefficients"][number] for point in trace], label=name,
                  color=PALETTE[number], linestyle="--" if number in (1, 3) else "-")  # fmt: skip
    tidy(left, "softmax: change of four scores", "step")
    for number, name in enumerate(KINDS):
        middle.plot(steps, [p["losses"][number] for p in trace], label=name, color=PALETTE[number])
    middle.set_yscale("log")
    tidy(middle, "softmax: loss by kind of sample", "step")
    for axes in (left, middle):
        axes.set_xscale("log")
        legend(axes)
    elastic = [n for n in OPERATORS if OPERATORS[n][0] in ("softmax", "elastic")]
    lams = [OPERATORS[name][1].get("lam", 0.0) for name in elastic]
    for number, (metric, label) in enumerate((("moved", "change of the four scores"),
                                              ("test_loss", "test loss"))):  # fmt: skip
        means = [results.mean(name, metric) for name in elastic]
        right.plot(lams, means, marker="o", markersize=4, color=PALETTE[number], label=label)
    right.set_yscale("symlog", linthresh=1e-3)
    right.set_ylim(bottom=0)
    tidy(right, "elastic: what is left as lam grows", "lam")
    legend(right)
    return made


STUDY = Study(
    name="cooccurrence",
    title="Two words that occur together",
    question="How does gradient descent teach one attention layer that two words occur together, "
    "and what is left of it if columns are balanced?",
    source="Yang et al., Training dynamics to recognize word co-occurrence, NeurIPS 2024",
    about="The experiment of the paper's appendix: 60 samples of 5 words from a vocabulary of 64, "
    "128 features, 256 hidden units, Kaiming's normal initialisation, 30,000 steps of gradient "
    "descent on all samples at rate 0.01, in float64. The test has 6,000 fresh samples. Where one "
    "query is read, it is the word that every sample holds. Then other operators take the place of "
    "softmax under the same rest.",
    sizes=lambda settings: SMOKE if settings.smoke else FULL,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Left and middle: softmax, the first seed. Right: means over seeds.",
    seeds=(0, 1, 2),
)
