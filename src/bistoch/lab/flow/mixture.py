"""`bistoch flow mixture`: two bumps that melt into one, as published, and measured."""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from bistoch.flows import FlowState, GaussianMixture, two_bumps, w2_line, w2_to_law
from bistoch.lab.device import CPU
from bistoch.lab.drawing import PALETTE, QUIET, row, tidy
from bistoch.lab.flow import sweeps
from bistoch.lab.flow.figures import draw_curves, draw_densities, draw_points, name_places
from bistoch.lab.flow.report import FlowReport
from bistoch.lab.flow.trajectory import Trajectory

DRAWS = 20


def run_mixture(
    *,
    n: int,
    eps: float,
    time: float,
    seed: int,
    quick: bool,
    out: Path,
    console: Console,
    device: torch.device = CPU,
) -> Path:
    """Half N(-2, 1), half N(2, 1) under the heat flow, against the exact law at every time."""
    report = FlowReport(
        "mixture", "The heat flow of two bumps", out, console, device, n=n, eps=eps, time=time,
        seed=seed, quick=quick,
    )  # fmt: skip
    law = two_bumps()
    x = law.sample(n, generator=torch.Generator().manual_seed(seed))

    def measure(state: FlowState) -> dict[str, float]:
        truth = law.after(state.time)
        carried = law.carry(x[:, 0], state.time)
        return {
            "flow": w2_to_law(state.particles, truth.quantile, fine=4),
            "carried": w2_to_law(carried, truth.quantile, fine=4),
            "particles": w2_line(state.particles, carried),
            "variance": state.particles.var().item(),
        }

    found = report.follow("mixture", x, time, eps, measure, keep=24)
    fresh = _distances(report, law, found, n, time)
    figure = draw_densities(
        found.some(5), lambda t, at: law.after(t).density(at[:, None]), f"n = {n}, eps = {eps:g}"
    )
    draws = fresh[time]
    report.finding(
        f"At t = {time:g} the particles are {found.curve('flow')[-1]:.3f} away from the exact law "
        f"(W2); fresh samples of the same size are {draws[0]:.3f} to {draws[-1]:.3f} away.",
        figure, "Particles over the exact density.",
    )  # fmt: skip
    _quantiles(report, law, found, time)
    grid = torch.linspace(-8, 8, 300, dtype=torch.float64)

    def paint(axes: Any, frame: tuple[float, Tensor]) -> None:
        now, points = frame
        axes.hist(points.flatten().numpy(), bins=70, range=(-8, 8), density=True, color=PALETTE[5])
        axes.plot(grid, law.after(now).density(grid[:, None]), color=PALETTE[1], linewidth=1.4)
        axes.set(xlim=(-8, 8), ylim=(0, 0.24))
        tidy(axes, f"t = {now:.2f}")

    frames = found.snapshots.items()
    report.animation("mixture", "The flow, with the exact density.", frames, paint)
    small, large = (0.1, 0.05, 0.025, 0.0125), (0.4, 0.2, 0.1, 0.05)
    panels = [
        ("one step", "eps", [("quadrature", small, sweeps.one_step_errors(law, small), 3)]),
        ("flow to t = 0.8", "eps", [("quadrature", large, sweeps.flow_errors(law, 0.8, large), 2)]),
        ("score", "eps", [("quadrature", large, sweeps.score_biases(law, large), 1)]),
    ]
    report.orders("Orders in eps, without sampling", "Errors of the scheme alone.", panels)
    _sweep(report, law, time, quick)
    track = {"times": found.times, "rows": found.rows, "fresh": fresh}
    return report.finish(track=track)


def _distances(
    report: FlowReport, law: GaussianMixture, found: Trajectory, n: int, time: float
) -> dict[float, list[float]]:
    fresh = {}
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        truth = law.after(share * time)
        fresh[share * time] = sorted(
            w2_to_law(
                truth.sample(n, generator=torch.Generator().manual_seed(7000 + s)), truth.quantile
            )
            for s in range(DRAWS)
        )
    rows = []
    for wanted, draws in fresh.items():
        at = min(range(len(found.times)), key=lambda k: abs(found.times[k] - wanted))
        now = found.rows[at]
        rows.append([
            f"{found.times[at]:.3g}", now["flow"], now["carried"], now["particles"],
            sum(draws) / DRAWS, draws[0], draws[-1],
        ])  # fmt: skip
    report.numbers(
        f"W2 to the exact law, n = {n}",
        ["t", "flow", "start carried exactly", "flow to carried", "fresh samples: mean", "least",
         "most"],
        rows,
    )  # fmt: skip
    figure, (left, right) = row(2)
    times = list(fresh)
    left.fill_between(
        times, [d[0] for d in fresh.values()], [d[-1] for d in fresh.values()], color="#dddddd",
        label=f"{DRAWS} fresh samples of n",
    )  # fmt: skip
    curves = {"flow": found.curve("flow"), "start, carried exactly": found.curve("carried")}
    draw_curves(left, found.times, curves, "W2 to the exact law")
    left.set_ylim(0)
    exact = [law.after(t).covariance.item() for t in found.times]
    variances = {"particles": found.curve("variance"), "exact": exact}
    draw_curves(right, found.times, variances, "variance")
    report.figure(figure, "The flow is as near to the truth as samples of the same size.")
    return fresh


def _quantiles(report: FlowReport, law: GaussianMixture, found: Trajectory, time: float) -> None:
    figure, (left, below) = row(2)
    end = found.last.flatten().sort().values
    shares = (torch.arange(len(end), dtype=torch.float64) + 0.5) / len(end)
    right = law.after(time).quantile(shares)
    left.plot(right, right, color=QUIET, linewidth=0.9)
    left.plot(right, end, ".", color=PALETTE[0], markersize=2)
    tidy(left, f"quantiles at t = {time:g}", "exact", "particles")
    below.plot(shares, end - right, color=PALETTE[0], linewidth=1)
    below.axhline(0, color=QUIET, linewidth=0.9)
    tidy(below, "particles minus exact", "share of the particles")
    report.figure(figure, "Quantiles of the particles against those of the exact law.")


def _sweep(report: FlowReport, law: GaussianMixture, time: float, quick: bool) -> None:
    steps, sizes = ((0.2, 0.05), (100, 200)) if quick else ((0.2, 0.05, 0.02), (125, 500, 1000))
    rows = sweeps.mixture_sweep(law, time, steps, sizes, seeds=1 if quick else 3)
    columns = {
        "n": "n", "eps": "eps", "flow": "W2 of the flow", "carried": "of the start carried",
        "fresh": "of fresh samples", "particles": "flow to carried", "self_weight": "self-weight",
    }  # fmt: skip
    lines = [[line[name] for name in columns] for line in rows]
    report.numbers(f"Sweep of eps and n, t = {time:g}", list(columns.values()), lines)
    figure, (left, right) = row(2)
    ends = {f"eps = {eps:g}": [r["flow"] for r in rows if r["eps"] == eps] for eps in steps}
    ends["fresh samples"] = [r["fresh"] for r in rows if r["eps"] == steps[0]]
    draw_points(left, sizes, ends, "W2 at the end", "n")
    near = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
    found = sweeps.score_errors(law, sizes, near, torch.Generator().manual_seed(0))
    errors = {f"n = {n}": values for n, values in found.items()}
    draw_points(right, near, errors, "score error at the particles", "eps")
    for panel, x in ((left, sizes), (right, near)):
        panel.set_yscale("log")
        name_places(panel, x)
    report.figure(figure, "Errors over n and eps: bias to the right, noise to the left.")
