"""`bistoch flow mixture`: two bumps that melt into one, as published, and measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from bistoch.flows import FlowState, GaussianMixture, two_bumps, w2_line, w2_to_law
from bistoch.lab.drawing import PALETTE, QUIET, legend, sheet, tidy
from bistoch.lab.flow import sweeps
from bistoch.lab.flow.animate import animate
from bistoch.lab.flow.draw import draw_curves, draw_densities, draw_order, name_places
from bistoch.lab.flow.page import Page
from bistoch.lab.flow.track import Track, follow

DRAWS = 20


def run_mixture(
    *, n: int, eps: float, time: float, seed: int, quick: bool, out: Path, console: Console
) -> Path:
    """Half N(-2, 1), half N(2, 1) under the heat flow, against the exact law at every time."""
    out.mkdir(parents=True, exist_ok=True)
    command = f"bistoch flow mixture --n {n} --eps {eps:g} --time {time:g} --seed {seed}"
    page = Page("The heat flow of two bumps", command + " --quick" * quick, out, console)
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

    keep = [time * share / 24 for share in range(25)]
    track = follow("mixture", x, time, eps, measure=measure, keep=keep, console=console, folder=out)
    page.warn(track.warnings)
    fresh = _distances(page, law, track, n, time)
    _panels(page, law, track, n, eps)
    _quantiles(page, law, track, time)
    page.animation(_movie(law, track), "mixture.gif", "The flow, with the exact density.")
    _orders(page, law)
    _sweep(page, law, time, quick)
    page.numbers["track"] = {
        "times": track.times, "rows": track.rows, "fresh": fresh
    }  # fmt: skip
    return page.write()


def _distances(
    page: Page, law: GaussianMixture, track: Track, n: int, time: float
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
        at = min(range(len(track.times)), key=lambda k: abs(track.times[k] - wanted))
        row = track.rows[at]
        rows.append([
            f"{track.times[at]:.3g}", row["flow"], row["carried"], row["particles"],
            sum(draws) / DRAWS, draws[0], draws[-1],
        ])  # fmt: skip
    page.table(
        f"W2 to the exact law, n = {n}",
        ["t", "flow", "start carried exactly", "flow to carried", "fresh samples: mean", "least",
         "most"],
        rows,
    )  # fmt: skip
    figure, axes = sheet(1, 2)
    left, right = axes[0]
    times = list(fresh)
    left.fill_between(
        times, [d[0] for d in fresh.values()], [d[-1] for d in fresh.values()], color="#dddddd",
        label=f"{DRAWS} fresh samples of n",
    )  # fmt: skip
    curves = {"flow": track.curve("flow"), "start, carried exactly": track.curve("carried")}
    draw_curves(left, track.times, curves, {})
    left.set_ylim(0)
    tidy(left, "W2 to the exact law", "time")
    exact = [law.after(t).covariance.item() for t in track.times]
    styles = {"exact": {"color": QUIET, "linestyle": "--"}}
    draw_curves(
        right, track.times, {"particles": track.curve("variance"), "exact": exact}, styles
    )  # fmt: skip
    tidy(right, "variance", "time")
    page.figure(figure, "The flow is as near to the truth as samples of the same size.")
    return fresh


def _panels(page: Page, law: GaussianMixture, track: Track, n: int, eps: float) -> None:
    figure = draw_densities(
        track.some(5), lambda t, at: law.after(t).density(at[:, None]), f"n = {n}, eps = {eps:g}"
    )
    page.figure(figure, "Particles over the exact density.")


def _quantiles(page: Page, law: GaussianMixture, track: Track, time: float) -> None:
    figure, axes = sheet(1, 2)
    end = track.last.flatten().sort().values
    shares = (torch.arange(len(end), dtype=torch.float64) + 0.5) / len(end)
    right = law.after(time).quantile(shares)
    left, below = axes[0]
    left.plot(right, right, color=QUIET, linewidth=0.9)
    left.plot(right, end, ".", color=PALETTE[0], markersize=2)
    tidy(left, f"quantiles at t = {time:g}", "exact", "particles")
    below.plot(shares, end - right, color=PALETTE[0], linewidth=1)
    below.axhline(0, color=QUIET, linewidth=0.9)
    tidy(below, "particles minus exact", "share of the particles")
    page.figure(figure, "Quantiles of the particles against those of the exact law.")


def _movie(law: GaussianMixture, track: Track) -> bytes:
    grid = torch.linspace(-8, 8, 300, dtype=torch.float64)

    def paint(axes: Any, frame: tuple[float, Tensor]) -> None:
        time, points = frame
        axes.hist(points.flatten().numpy(), bins=70, range=(-8, 8), density=True, color=PALETTE[5])
        axes.plot(grid, law.after(time).density(grid[:, None]), color=PALETTE[1], linewidth=1.4)
        axes.set(xlim=(-8, 8), ylim=(0, 0.24))
        tidy(axes, f"t = {time:.2f}")

    return animate(track.snapshots.items(), paint)


def _orders(page: Page, law: GaussianMixture) -> None:
    figure, axes = sheet(1, 3)
    small, large = (0.1, 0.05, 0.025, 0.0125), (0.4, 0.2, 0.1, 0.05)
    rows = []
    found: Sequence[tuple[str, Sequence[float], list[float], float]] = (
        ("one step", small, sweeps.one_step_errors(law, small), 3),
        ("flow to t = 0.8", large, sweeps.flow_errors(law, 0.8, large), 2),
        ("score", large, sweeps.score_biases(law, large), 1),
    )
    for panel, (name, steps, errors, predicted) in zip(axes[0], found, strict=True):
        fitted = draw_order(panel, steps, errors, name, PALETTE[0], predicted)
        spoken = f"{steps[0]:g} to {steps[-1]:g}"
        rows.append([name, predicted, fitted, spoken, f"{errors[0]:.1e}", f"{errors[-1]:.1e}"])
        legend(panel)
        tidy(panel, f"{name}, without sampling", "eps")
    page.table(
        "Orders in eps, without sampling",
        ["error", "predicted", "fitted", "eps", "largest error", "smallest"],
        rows,
    )
    page.figure(figure, "Errors of the scheme alone; dashed lines have the predicted slope.")


def _sweep(page: Page, law: GaussianMixture, time: float, quick: bool) -> None:
    steps, sizes = ((0.2, 0.05), (100, 200)) if quick else ((0.2, 0.05, 0.02), (125, 500, 1000))
    rows = sweeps.mixture_sweep(law, time, steps, sizes, seeds=1 if quick else 3)
    names = ("n", "eps", "flow", "carried", "fresh", "particles", "self_weight")
    heads = ["n", "eps", "W2 of the flow", "of the start carried", "of fresh samples",
             "flow to carried", "self-weight"]  # fmt: skip
    page.table(
        f"Sweep of eps and n, t = {time:g}", heads, [[row[name] for name in names] for row in rows]
    )
    figure, axes = sheet(1, 2)
    left, right = axes[0]
    for colour, eps in zip(PALETTE, steps, strict=False):
        some = [row for row in rows if row["eps"] == eps]
        left.loglog(
            sizes, [row["flow"] for row in some], "o-", color=colour, label=f"eps = {eps:g}"
        )
    fresh = [row["fresh"] for row in rows if row["eps"] == steps[0]]
    left.loglog(sizes, fresh, "--", color=QUIET, label="fresh samples")
    legend(left)
    name_places(left, sizes)
    tidy(left, "W2 at the end", "n")
    generator = torch.Generator().manual_seed(0)
    near = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
    for colour, (n, errors) in zip(
        PALETTE, sweeps.score_errors(law, sizes, near, generator).items(), strict=False
    ):
        right.loglog(near, errors, "o-", color=colour, label=f"n = {n}")
    legend(right)
    name_places(right, near)
    tidy(right, "score error at the particles", "eps")
    page.figure(figure, "Errors over n and eps: bias to the right, noise to the left.")
