"""Two words that occur together: how one attention layer learns them, and what balance takes away.

A sample is positive if it holds both of two words. One layer of attention with a linear read-out
learns it by gradient descent, first by what it reads, then by where it attends. The published
analysis is for softmax; here other operators take its place.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

import bistoch
from bistoch.lab.drawing import PALETTE, grid, legend, tidy
from bistoch.lab.reproduce.cooccurrence_layer import (
    FOLLOWED,
    KINDS,
    Balance,
    Layer,
    Sizes,
    all_right,
    attention_moves,
    balance_of_pulls,
    draw_samples,
    followed,
    hump,
    look,
    margins_hold,
    one_word,
    points,
    signs_hold,
    top,
)
from bistoch.lab.study import (
    INCONCLUSIVE,
    Cell,
    Column,
    Context,
    Result,
    Results,
    Study,
    Table,
    Verdict,
)

SOFTMAX, BALANCED = "lam 0 (softmax)", "lam 1 (balanced)"
# small steps, as in the analysis, and as many as the first phase needs
SLOW, SLOWLY = "softmax, rate 0.001", {"rate": 0.001, "steps": 2000}
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
# how long the picture follows the loss of one-word samples, in steps times rate
EARLY = 0.12


def cells(smoke: bool) -> list[Cell]:
    """Every operator with the published read-out; two read from the common word alone, one slowly.

    What a cell changes about the sizes stands in its options: those of others stay as they are.
    """
    every = [
        Cell(name, {"operator": operator, "options": options, "every_query": True})
        for name, (operator, options) in OPERATORS.items()
    ]
    one = [
        Cell(one_query(name), {"operator": OPERATORS[name][0], "options": OPERATORS[name][1],
                               "every_query": False})
        for name in (SOFTMAX, BALANCED)
    ]  # fmt: skip
    slow = Cell(SLOW, {"operator": "softmax", "options": {}, "every_query": True, **SLOWLY})
    return [*every, *one, slow]


def one_query(name: str) -> str:
    """The name of a cell that reads one row of the plan.

    >>> one_query("softpick")
    'softpick, one query'
    """
    return f"{name}, one query"


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Train by gradient descent on all samples, and follow losses, scores and gradients."""
    sizes, generator = sizes_of(cell, context.sizes), torch.Generator().manual_seed(seed)
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


def sizes_of(cell: Cell, sizes: Sizes) -> Sizes:
    """The sizes of a run, with the rate of a cell and never more steps than it has."""
    return replace(
        sizes,
        rate=cell.options.get("rate", sizes.rate),
        steps=min(cell.options.get("steps", sizes.steps), sizes.steps),
    )


def show_step(step: float) -> str:
    """A step in words of a verdict.

    >>> show_step(13.0), show_step(math.inf)
    ('13', 'not reached')
    """
    return "not reached" if math.isinf(step) else f"{step:.0f}"


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
        if not found:
            return Verdict(text, "not measured", INCONCLUSIVE)
        measured = "; ".join(shown(result) for result in found)
        return Verdict(text, measured, "yes" if all(map(holds, found)) else "no")

    def steps(result: Result) -> str:
        return f"{show_step(all_right(result))}, {show_step(attention_moves(result))}"

    def rise(result: Result) -> str:
        return f"{hump(result):.0%} at step {top(result)}" if hump(result) > 0 else "0%"

    def margins(result: Result) -> str:
        found = [one.margin for one in balance_of_pulls(result)]
        return f"{min(found):.3f}, {found[-1]:.3f}" if found else "not reached"

    def gaps(result: Result) -> str:
        found = [one.gap for one in balance_of_pulls(result)]
        return f"{max(found):.2f}, {found[-1]:.2f}" if found else "not reached"

    def stays(result: Result, holds: Callable[[Balance], bool]) -> bool:
        return bool(found := balance_of_pulls(result)) and all(map(holds, found))

    return [
        every(SOFTMAX, lambda r: all_right(r) < attention_moves(r),
              "softmax: all samples are right before attention moves by a tenth (step of either)",
              steps),
        every(SOFTMAX, lambda r: signs_hold(r) == 4,
              "softmax: C12 and C21 rise, C31 and C32 fall (signs that hold, of 4)",
              lambda r: f"{signs_hold(r):g}"),
        every(SOFTMAX, lambda r: hump(r) > 0.01,
              "softmax: the loss of one-word samples first rises (by)", rise),
        every(SLOW, lambda r: hump(r) > 0.01 and top(r) > 1,
              f"{SLOW}: the loss of one-word samples first rises, for several steps (by)", rise),
        every(SOFTMAX, lambda r: stays(r, lambda one: one.margin > 0),
              "softmax: after the first phase, gradients of positive samples exceed those of "
              "either one-word kind, and not those of all negative ones (smallest margin, last)",
              margins),
        every(SOFTMAX, lambda r: stays(r, lambda one: one.gap < 0.1),
              "softmax: after the first phase, gradients of the two one-word kinds differ by less "
              "than a tenth (largest difference, last)", gaps),
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
    """One line per operator, and the hump at either rate."""
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
            names=[name for name in results.names if name != SLOW],
            baseline=SOFTMAX,
        ),
        Table(
            ["rate", "seed", "loss at the start", "largest loss", "at step", "all right from step"],
            [
                [
                    f"{rate:g}", str(seed), f"{one_word(r)[0]:.2f}", f"{max(one_word(r)):.2f}",
                    str(top(r)), show_step(all_right(r)),
                ]
                for name, rate in ((SOFTMAX, FULL.rate), (SLOW, SLOWLY["rate"]))
                for seed, r in results.by_seed(name).items()
            ],
            "Softmax: the loss of samples with one of the two words, at the published rate and "
            "at a tenth of it.",
        ),
    ]  # fmt: skip


def figure(results: Results) -> Any:
    """The four coefficients and the losses of softmax, and what is left of both as lam grows."""
    made, (left, middle, slow, right) = grid(4, 2, width=4.6, height=3.0)
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
    for name, rate, style in ((SOFTMAX, FULL.rate, "--"), (SLOW, SLOWLY["rate"], "-")):
        for number, (seed, found) in enumerate(results.by_seed(name).items()):
            losses = one_word(found)
            times = [rate * point["step"] for point in found["trace"]]
            early = [n for n, time in enumerate(times) if time <= EARLY]
            slow.plot([times[n] for n in early], [losses[n] / losses[0] for n in early], style,
                      color=PALETTE[number], label=f"rate {rate:g}, seed {seed}")  # fmt: skip
    tidy(slow, "softmax: loss of one-word samples over its start", "step x rate")
    legend(slow)
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
    "query is read, it is the word that every sample holds. Softmax is trained at rate 0.001 too, "
    "for 2,000 steps, since the analysis is of small steps. Then other operators take the place of "
    "softmax under the same rest.",
    sizes=lambda settings: SMOKE if settings.smoke else FULL,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Above: softmax, the first seed. Below: every seed, and means over seeds.",
    seeds=(0, 1, 2),
)
