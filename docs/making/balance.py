"""What the pages of the operators show: plans, rates, errors."""

import math
from collections.abc import Iterator

import torch
from making.drawing import INK, PALETTE, decorate, put_table, save, seeded
from matplotlib.figure import Figure
from torch import Tensor

import bistoch
from bistoch.analysis import draw_plans, planted_tokens
from bistoch.functional.elastic.reference import column_step, row_step
from bistoch.functional.sliced.reference import blur, couple


def plans() -> None:
    """The picture of the README: four plans of the same tokens."""
    query, key = planted_tokens(14, sink=3.0, generator=seeded(0))
    drawn = {
        "softmax": bistoch.softmax_plan(query, key),
        "elastic(lam=0.5)": bistoch.elastic_plan(query, key, lam=0.5),
        "sinkhorn": bistoch.sinkhorn_plan(query, key, iters=50),
        "hard": bistoch.hard_plan(query, key),
    }
    save(draw_plans(drawn), "plans")


def rowwise() -> None:
    """What other row-wise normalisers make of the tokens of the README's picture."""
    query, key = planted_tokens(14, sink=3.0, generator=seeded(0))
    drawn = {
        "softmax": bistoch.softmax_plan(query, key),
        "sink(logit=2)": bistoch.sink_plan(query, key, logit=2.0),
        "sigmoid": bistoch.sigmoid_plan(query, key),
        "softpick": bistoch.softpick_plan(query, key),
        "entmax": bistoch.entmax_plan(query, key),
        "sparsemax": bistoch.sparsemax_plan(query, key),
    }
    save(draw_plans(drawn), "rowwise")


def speed_not_softness() -> None:
    """The exponent of the source rule (omega) leaves the fixed point alone; lam moves it."""
    scores = random_scores(24)
    figure = Figure(figsize=(10.5, 3.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    omegas, lams = (0.1, 0.25, 0.5, 1.0, 1.5), (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
    for colour, omega in zip(PALETTE, omegas, strict=False):
        errors = [column_error(plan) for plan in trace(scores, lam=1.0, omega=omega, iters=60)]
        left.plot(errors, color=colour, label=f"omega = {omega:g}")
    for colour, lam in zip(PALETTE, lams, strict=False):
        errors = [column_error(plan) for plan in trace(scores, lam=lam, omega=1.0, iters=60)]
        middle.plot(errors, color=colour)
        middle.text(61.5, errors[-1], f"lam = {lam:g}", fontsize=8, color=colour, va="center")
    decorate(
        left, "lam = 1: omega changes the speed,\nnot the limit", "iterations", "mean column error"
    )
    decorate(middle, "omega = 1: every lam\nhas a limit of its own", "iterations", "")
    left.legend(fontsize=8, frameon=False)
    for axes in (left, middle):
        axes.set(xlim=(0, 60), ylim=(-0.015, 0.47), yticks=[0, 0.1, 0.2, 0.3, 0.4])

    dial = torch.linspace(0.05, 1, 20, dtype=torch.float64)
    plain = bistoch.balance(scores, iters=2000)
    by_omega = bistoch.balance(scores.expand(20, 24, 24), omega=dial, iters=2000)
    by_lam = bistoch.balance(scores.expand(20, 24, 24), lam=dial, iters=2000)
    softmax = scores.softmax(-1)
    whole = (softmax - plain).abs().sum()
    for limits, name, colour in ((by_omega, "omega", PALETTE[1]), (by_lam, "lam", PALETTE[5])):
        share = (limits - plain).abs().sum((-2, -1)) / whole
        start = [1.0] if name == "lam" else []
        where = [0.0] * len(start) + dial.tolist()
        right.plot(
            where, start + share.tolist(), color=colour, marker="o", markersize=3, label=name
        )
    decorate(
        right, "distance of the limit from Sinkhorn,\nthat of softmax being 1", "omega or lam", ""
    )
    right.legend(fontsize=8, frameon=False)
    right.set(xlim=(0, 1.02), ylim=(-0.04, 1.04))
    save(figure, "speed_not_softness")

    rows = []
    for omega in (0.1, 0.5, 1.0, 1.5, 1.8):
        plan = bistoch.balance(scores, omega=omega, iters=2000)
        rows.append([f"1, {omega:g}", *facts(plan, plain)])
    for lam in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        plan = bistoch.balance(scores, lam=lam, iters=2000)
        rows.append([f"{lam:g}, 1", *facts(plan, plain)])
    heads = [
        "lam, omega",
        "mean column error",
        "column sums",
        "row entropy",
        "largest difference",
    ]
    put_table("operators/elastic.md", "limits", heads, rows)


def rates() -> None:
    """The local rate of the iteration, predicted from the limit and measured."""
    scores = random_scores(24)
    rows = []
    settings = [(1.0, omega) for omega in (0.1, 0.5, 1.0, 1.25, 1.5, 1.8)]
    settings += [(lam, 1.0) for lam in (0.25, 0.5, 0.75, 0.9)]
    spectrum = round_trip(bistoch.balance(scores, iters=2000))
    best = (2 / (2 - spectrum[0] - spectrum[-1])).item()
    settings.insert(4, (1.0, best))
    for lam, omega in settings:
        limit = bistoch.balance(scores, lam=lam, iters=2000)
        gaps = [(plan - limit).abs().max().item() for plan in trace(scores, lam, omega, iters=1000)]
        # the slope where the start is forgotten and rounding is not yet felt
        first = next(t for t, gap in enumerate(gaps) if gap < 1e-7)
        last = next(t for t, gap in enumerate(gaps) if gap < 1e-12)
        measured = (gaps[last] / gaps[first]) ** (1 / (last - first))
        reached = next(t for t, gap in enumerate(gaps) if gap < 1e-10)
        predicted = predict_rate(limit, lam, omega)
        step = f"{omega:.2f} (best)" if omega == best else f"{omega:g}"
        rows.append([f"{lam:g}", step, f"{predicted:.3f}", f"{measured:.3f}", str(reached)])
    heads = ["lam", "omega", "predicted rate", "measured rate", "iterations to 1e-10"]
    put_table("operators/elastic.md", "rates", heads, rows)


def iterations() -> None:
    """How the column error falls with the iterations, and how many are enough."""
    query, key = torch.randn(2, 128, 32, generator=seeded(0), dtype=torch.float64).unbind()
    temperatures, lams = (1.0, 0.25, 0.1), (0.5, 0.9, 1.0)
    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    steps = (1, 2, 3, 4, 5, 7, 10, 14, 20, 30, 40, 50, 70, 100, 140, 200, 300, 500)
    for axes, eps in zip(panels, temperatures, strict=True):
        for colour, lam in zip((PALETTE[1], PALETTE[2], PALETTE[5]), lams, strict=True):
            errors = [
                bistoch.elastic_potentials(query, key, lam=lam, eps=eps, iters=t).error.item()
                for t in steps
            ]
            axes.loglog(steps, errors, color=colour, label=f"lam = {lam:g}")
        axes.axhline(1e-3, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
        decorate(axes, f"eps = {eps:g}", "iterations", "error" if eps == 1 else "")
        axes.set(xlim=(1, 500), ylim=(1e-8, 20), xticks=[1, 10, 100])
        axes.set_xticklabels(["1", "10", "100"])
    panels[0].legend(fontsize=8, frameon=False, loc="lower right")
    save(figure, "iterations")

    rows = []
    for eps in (2.0, 1.0, 0.5, 0.25, 0.1):
        row = [f"{eps:g}"]
        for lam in (0.25, 0.5, 0.75, 0.9, 0.99, 1.0):
            # plain steps, like those of the picture and of a call without a tolerance
            found = bistoch.elastic_potentials(
                query, key, lam=lam, eps=eps, omega=1.0, iters=10_000, tol=1e-3
            )
            row.append(str(found.iterations.item()))
        rows.append(row)
    heads = ["eps", *(f"lam = {lam:g}" for lam in (0.25, 0.5, 0.75, 0.9, 0.99, 1.0))]
    put_table("operators/elastic.md", "enough", heads, rows)


def annealing() -> None:
    """How annealed plans approach the best assignment, with and without the correction."""
    query, key = torch.randn(2, 20, 32, 16, generator=seeded(0), dtype=torch.float64).unbind()
    scores = query @ key.mT / math.sqrt(16)
    hard = bistoch.hard_plan(query, key)
    best = (hard * scores).sum((-2, -1))
    steps = (1, 3, 10, 30, 100, 300, 1000, 3000)
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for debias in (True, False):
        curves[f"debias={debias}"] = [
            assess(bistoch.anneal_plan(query, key, iters=t, debias=debias), scores, hard, best)
            for t in steps
        ]
    figure = Figure(figsize=(7.6, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, curve), colour in zip(curves.items(), (PALETTE[1], PALETTE[5]), strict=True):
        left.loglog(
            steps, [gap for gap, _, _ in curve], color=colour, marker="o", markersize=3, label=name
        )
        right.loglog(
            steps,
            [error for _, error, _ in curve],
            color=colour,
            marker="o",
            markersize=3,
            label=name,
        )
    decorate(left, "score missing to the best assignment", "steps", "per query")
    decorate(right, "mean column error", "steps", "")
    left.legend(fontsize=8, frameon=False, prop={"family": "monospace", "size": 8})
    save(figure, "anneal")
    rows = []
    for place, t in enumerate(steps):
        row = [str(t)]
        for curve in curves.values():
            gap, error, right_keys = curve[place]
            row += [f"{gap:.2g}", f"{error:.2g}", f"{100 * right_keys:.0f} %"]
        rows.append(row)
    heads = ["steps"]
    for name in curves:
        heads += [f"{name}: gap", "column error", "queries with their key"]
    put_table("operators/anneal.md", "anneal", heads, rows)


def soft_sort() -> None:
    """What a soft sort makes of row and column sums: the usual product, and ours."""
    rows = []
    for eps in (1e-3, 1e-2, 1e-1, 1.0):
        row = [f"{eps:g}"]
        for lines in (1, 64):
            usual, ours = soft_sort_errors(eps, lines, draws=200 if lines == 1 else 20)
            # what is left is rounding, which belongs to the machine
            ours[0] = 0.0 if ours[0] < 1e-12 else ours[0]
            row += [f"{usual[0]:.2g} / {usual[1]:.2g}", f"{ours[0]:.1g} / {ours[1]:.2g}"]
        rows.append(row)
    heads = ["eps", "usual, 1 line: rows / columns", "ours", "usual, 64 lines", "ours"]
    put_table("operators/sliced.md", "soft_sort", heads, rows)


def random_scores(size: int) -> Tensor:
    """A square matrix of scores whose softmax is visibly unbalanced."""
    return 2.5 * torch.randn(size, size, generator=seeded(0), dtype=torch.float64)


def trace(scores: Tensor, lam: float, omega: float, iters: int) -> Iterator[Tensor]:
    """The plans after 0, 1, ... iterations, by the steps of the reference backend."""
    scores, column = scores[None], torch.zeros(1, scores.shape[1], dtype=scores.dtype)
    log_mass = torch.zeros_like(column)
    for _ in range(iters + 1):
        row = row_step(scores, column)
        yield (scores + row[:, :, None] + column[:, None, :]).exp()[0]
        column = (1 - omega) * column + omega * lam * column_step(scores, row, log_mass)


def column_error(plan: Tensor) -> float:
    """How far column sums are from one, on average."""
    return (plan.sum(-2) - 1).abs().mean().item()


def facts(plan: Tensor, balanced: Tensor) -> list[str]:
    """What the table of limits says about one plan."""
    columns, entropy = plan.sum(-2), torch.special.entr(plan).sum(-1).mean()
    away = (plan - balanced).abs().max().item()
    return [
        f"{column_error(plan):.3f}",
        f"{columns.min():.3f} to {columns.max():.3f}",
        f"{entropy:.3f}",
        "below 1e-12" if away < 1e-12 else f"{away:.3f}",
    ]


def round_trip(limit: Tensor) -> Tensor:
    """The eigenvalues of one round over rows and columns, largest first.

    The eigenvalue one is left out: it belongs to a constant added to all of g, which no plan feels.
    """
    back = limit.mT / limit.sum(0)[:, None]
    return torch.linalg.eigvals(back @ limit).real.sort(descending=True).values[1:]


def predict_rate(limit: Tensor, lam: float, omega: float) -> float:
    """The factor by which one iteration shortens the distance to the limit, near the limit."""
    return (1 - omega * (1 - lam * round_trip(limit))).abs().max().item()


def assess(plan: Tensor, scores: Tensor, hard: Tensor, best: Tensor) -> tuple[float, float, float]:
    """Missing score per query, mean column error, and the share of queries with their own key."""
    gap = (best - (plan * scores).sum((-2, -1))).mean().item() / plan.shape[-1]
    same = (plan.argmax(-1) == hard.argmax(-1)).double().mean().item()
    return gap, column_error(plan), same


def soft_sort_errors(eps: float, lines: int, draws: int) -> tuple[list[float], list[float]]:
    """Mean errors of row and column sums, of A^T B with A of ranks to tokens, and of our plan."""
    x, y = (
        torch.randn(2, draws, lines, 64, generator=seeded(0), dtype=torch.float64).div(8).unbind()
    )
    real, each = torch.ones(draws, 64, dtype=torch.bool), x.new_full((draws,), eps)
    usual = sum(
        blur(a, real, each).mT @ couple(a, b, real, real) @ blur(b, real, each)
        for a, b in zip(x.unbind(1), y.unbind(1), strict=True)
    )
    ours = bistoch.sliced_plan(x.mT, y.mT, eps=eps, tau=0.0)
    return tuple(
        [(plan.sum(axis) - 1).abs().mean().item() for axis in (-1, -2)]
        for plan in (usual / lines, ours)
    )
