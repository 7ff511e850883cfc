"""Every picture and every table of measured numbers in the docs: `make figures` runs this file.

Pictures are written to docs/figures, tables into the pages, between the lines
`<!-- measured: name -->` and `<!-- end -->`. Seeds are fixed; nothing here is timed.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import bistoch
from bistoch.analysis import draw_plans, planted_tokens
from bistoch.flows import flow_variance, heat_flow, step_variance, two_bumps, w2_to_law
from bistoch.functional.elastic.reference import column_step, row_step
from bistoch.lab.flow import clusters, sweeps
from bistoch.lab.flow.draw import draw_clouds, draw_densities, draw_order, fitted_order, sheet

DOCS = Path(__file__).parent
INK, GRID = "#222222", "#e4e4e4"
# the palette of Okabe and Ito, from dark to bright: colour-blind eyes can tell these apart
PALETTE = ("#000000", "#0072b2", "#009e73", "#56b4e9", "#e69f00", "#d55e00", "#cc79a7")


def main() -> None:
    """Measure everything, draw it, and put the numbers into the pages."""
    # small matrices: more threads would only wait for each other
    torch.set_num_threads(1)
    for measure in (
        plans, speed_not_softness, rates, iterations, annealing, flow_mixture, flow_orders,
        flow_limits, flow_clusters,
    ):  # fmt: skip
        measure()
        print(f"done: {measure.__name__}")


# what the pages show


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
            found = bistoch.elastic_potentials(query, key, lam=lam, eps=eps, iters=10_000, tol=1e-3)
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


# how it is measured


def seeded(seed: int) -> torch.Generator:
    """A source of random numbers that is the same in every run."""
    return torch.Generator().manual_seed(seed)


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


def flow_mixture() -> None:
    """Two bumps under the heat flow, against the exact law and against fresh samples."""
    law, n, eps, time = two_bumps(), 1000, 0.02, 2.0
    x = law.sample(n, generator=seeded(0))
    shown = {s.time: s.particles for s in heat_flow(x, time, eps) if s.step % 25 == 0}
    figure = draw_densities(
        shown, lambda t, at: law.after(t).density(at[:, None]), f"n = {n}, eps = {eps:g}"
    )
    save(figure, "flow_mixture")
    rows = []
    for t, particles in shown.items():
        truth = law.after(t)
        carried = w2_to_law(law.carry(x[:, 0], t), truth.quantile)
        fresh = [
            w2_to_law(truth.sample(n, generator=seeded(100 + s)), truth.quantile) for s in range(20)
        ]
        ours = w2_to_law(particles, truth.quantile)
        mean = sum(fresh) / len(fresh)
        cells = (ours, carried, mean, min(fresh), max(fresh))
        rows.append([f"{t:.1f}", *(f"{cell:.3f}" for cell in cells)])
    heads = ["t", "flow", "start carried exactly", "fresh samples, mean", "least", "most"]
    put_table("flows.md", "flow_w2", heads, rows)

    rows = []
    for count in (500, 2000):
        for start in ("sample", "quantiles"):
            law = sweeps.NORMAL
            x = (
                law.quantiles(count)
                if start == "quantiles"
                else law.sample(count, generator=seeded(0))
            )
            *_, end = heat_flow(x, 2.0, 0.1)
            right = flow_variance(x.var().item(), 2.0, 0.1)[-1]
            numbers = (x.var().item(), end.particles.var().item(), right)
            rows.append([f"{count}, {start}", *(f"{number:.4f}" for number in numbers)])
    half = torch.tensor(1.0)
    for _ in range(20):
        half = step_variance(half, 0.05)
    rows.append(["published code, by its recursion", "1.0000", f"{half.item():.4f}", ""])
    heads = ["n, start", "variance at the start", "at t = 2", "by the exact recursion"]
    put_table("flows.md", "flow_variance", heads, rows)


def flow_orders() -> None:
    """How the errors of a step, a flow and a score fall with eps, sampling left out."""
    law = two_bumps()
    small, large = (0.1, 0.05, 0.025, 0.0125), (0.4, 0.2, 0.1, 0.05)
    found = (
        ("one step", small, sweeps.one_step_errors(law, small), 3),
        ("flow to t = 0.8", large, sweeps.flow_errors(law, 0.8, large), 2),
        ("score", large, sweeps.score_biases(law, large), 1),
    )
    figure, panels = sheet(1, 3)
    rows = []
    for axes, (name, steps, errors, predicted) in zip(panels[0], found, strict=True):
        fitted = draw_order(axes, steps, errors, name, PALETTE[1], predicted)
        axes.legend(fontsize=8, frameon=False)
        decorate(axes, name, "eps", "root mean square error")
        rows.append(
            [name, str(predicted), f"{fitted:.2f}", f"{fitted_order(steps[-2:], errors[-2:]):.2f}"]
        )
    save(figure, "flow_orders")
    generator = seeded(0)
    for d in (1, 2):
        sizes = (125, 250, 500, 1000)
        errors = sweeps.score_noise(d, 0.2, sizes, 24, generator)
        rows.append(
            [f"noise of the score over n, {d}-D", "-0.5", f"{fitted_order(sizes, errors):.2f}", ""]
        )
    heads = ["error", "predicted order", "fitted", "of the two smallest eps"]
    put_table("flows.md", "flow_orders", heads, rows)


def flow_limits() -> None:
    """The floor of small eps, and the axis from mean-shift to heat."""
    figure, panels = sheet(1, 3)
    left, middle, right = panels[0]
    steps = [10**power for power in (-6, -5, -4.5, -4, -3.5, -3, -2.5, -2, -1)]
    for colour, (n, pairs) in zip(
        PALETTE[1:], sweeps.freezing((100, 400, 1000), steps).items(), strict=False
    ):
        left.semilogx(
            steps, [p[0] for p in pairs], "o-", color=colour, markersize=3, label=f"n = {n}"
        )
        middle.semilogx(steps, [p[1] for p in pairs], "o-", color=colour, markersize=3)
    left.legend(fontsize=8, frameon=False)
    decorate(left, "speed of one step on N(0, 1);\nheat is 1", "eps", "")
    decorate(middle, "weight that particles\nkeep for themselves", "eps", "")
    lams = [0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 1.0]
    for colour, (eps, (measured, exact)) in zip(
        PALETTE[1:], sweeps.speeds_over_lam(lams, (0.4, 0.1, 0.05), 300).items(), strict=False
    ):
        right.plot(lams, exact, color=colour, label=f"eps = {eps:g}")
        right.plot(lams, measured, "o", color=colour, markersize=3)
    right.legend(fontsize=8, frameon=False)
    decorate(right, "speed over lam: lines in closed form,\ndots measured", "lam", "")
    save(figure, "flow_limits")


def flow_clusters() -> None:
    """Tokens in the plane under layers of attention, from softmax to Sinkhorn."""
    x = torch.randn(160, 2, dtype=torch.float64, generator=seeded(0))
    shown = {}
    for name, lam in clusters.LAMS.items():
        states = clusters.layers(x, 0.15, 12, lam, skip=0.0, sphere=False)
        shown[name] = {float(k): states[k] for k in (0, 1, 3, 6, 12)}
    save(draw_clouds(shown, x[:, 0]), "flow_clusters")


# how it is written down


def decorate(axes, title: str, xlabel: str, ylabel: str) -> None:
    """Give a panel its words and a quiet frame."""
    axes.set_title(title, fontsize=10, color=INK)
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, length=2, color="#b8b8b8", labelcolor=INK, which="both")
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b8b8b8")


def save(figure: Figure, name: str) -> None:
    """Write one picture of the docs."""
    # without the version of the drawing library, so that the same picture is the same file
    figure.savefig(DOCS / "figures" / f"{name}.png", dpi=130, metadata={"Software": None})


def put_table(page: str, name: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Replace the table between `<!-- measured: name -->` and `<!-- end -->` in a page."""
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    opening = f"<!-- measured: {name} -->"
    before, rest = text.split(opening, 1)
    after = rest.split("<!-- end -->", 1)[1]
    lines = [heads, ["---"] * len(heads), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    path.write_text(f"{before}{opening}\n\n{table}\n\n<!-- end -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
