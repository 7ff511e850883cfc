"""`bistoch flow gaussian`: a flow whose every number is known."""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bistoch.flows import FlowState, flow_variance, step_variance, w2_to_law
from bistoch.lab.drawing import PALETTE, QUIET, legend, sheet, tidy
from bistoch.lab.flow import sweeps
from bistoch.lab.flow.draw import draw_curves, draw_densities, draw_order
from bistoch.lab.flow.page import Page
from bistoch.lab.flow.track import Track, follow

STEPS = (0.4, 0.2, 0.1, 0.05, 0.025)


def run_gaussian(
    *, n: int, eps: float, time: float, seed: int, quick: bool, out: Path, console: Console
) -> Path:
    """N(0, 1) under the heat flow, measured against the heat equation and the exact recursion."""
    out.mkdir(parents=True, exist_ok=True)
    command = f"bistoch flow gaussian --n {n} --eps {eps:g} --time {time:g} --seed {seed}"
    page = Page("The heat flow of a Gaussian", command + " --quick" * quick, out, console)
    law = sweeps.NORMAL
    x = law.sample(n, generator=torch.Generator().manual_seed(seed))

    def measure(state: FlowState) -> dict[str, float]:
        truth = law.after(state.time)
        near = w2_to_law(state.particles, truth.quantile, fine=8)
        return {"variance": state.particles.var().item(), "w2": near}

    keep = [time * share for share in (0, 0.25, 0.5, 1)]
    track = follow(
        "gaussian", x, time, eps, measure=measure, keep=keep, console=console, folder=out
    )
    page.warn(track.warnings)
    _variances(page, track, time, eps)
    figure = draw_densities(
        track.snapshots, lambda t, at: law.after(t).density(at[:, None]),
        f"N(0, 1), n = {n}, eps = {eps:g}",
    )  # fmt: skip
    page.figure(figure, "Particles over the exact density.")
    _orders(page)
    _scores(page, quick)
    _floor(page, quick)
    _elasticity(page, quick)
    return page.write()


def _variances(page: Page, track: Track, time: float, eps: float) -> None:
    start, end = track.curve("variance")[0], track.curve("variance")[-1]
    exact = flow_variance(1.0, time, eps)
    own = flow_variance(start, time, eps)
    # the published code leaves out the half of the cost: our recursion at half the temperature
    half = [1.0]
    for _ in exact[1:]:
        half.append(step_variance(half[-1], time / (len(exact) - 1) / 2).item())
    rows = [
        ["heat equation", 1.0, 1 + time, 0.0],
        ["exact recursion of the step", 1.0, exact[-1], exact[-1] / (1 + time) - 1],
        ["particles", start, end, end / (1 + time) - 1],
        ["exact recursion from their variance", start, own[-1], own[-1] / (1 + time) - 1],
        ["published code (no half in the cost)", 1.0, half[-1], half[-1] / (1 + time) - 1],
    ]
    page.table("Variance at the end", ["", "start", "end", "off by"], rows)
    figure, axes = sheet(1, 2)
    left, right = axes[0]
    curves = {
        "particles": track.curve("variance"), "1 + t": [1 + t for t in track.times],
        "published code": half,
    }  # fmt: skip
    styles = {"1 + t": {"color": QUIET, "linestyle": "--"}, "published code": {"linestyle": ":"}}
    draw_curves(left, track.times, curves, styles)
    tidy(left, "variance", "time")
    draw_curves(right, track.times, {"W2 to N(0, 1 + t)": track.curve("w2")}, {})
    tidy(right, "distance from the truth", "time")
    right.set_ylim(0)
    page.figure(figure, "The variance grows by the time; without the half in the cost, by half.")


def _orders(page: Page) -> None:
    page.heading("How the error falls with eps")
    page.text(
        "The theory promises that one step is right up to o(eps). It is better: expanding "
        "the bridge one order further gives the second-order term of the probability flow exactly, "
        "so that one step errs by eps cubed and the flow by eps squared."
    )
    law = sweeps.NORMAL
    figure, axes = sheet(1, 2)
    one, whole = axes[0]
    gaps = [1 + eps - step_variance(1.0, eps).item() for eps in STEPS]
    rows: list[list[Any]] = []
    closed = draw_order(one, STEPS, gaps, "variance, closed form", PALETTE[0], 3)
    rows.append(["one step: variance, closed form", 3, closed])
    places = draw_order(
        one, STEPS, sweeps.one_step_errors(law, STEPS), "particles, by quadrature", PALETTE[1], 3
    )
    rows.append(["one step: particles, by quadrature", 3, places])
    flow = draw_order(
        whole, STEPS[:-1], sweeps.flow_errors(law, 0.8, STEPS[:-1]), "t = 0.8", PALETTE[2], 2
    )
    rows.append(["flow to t = 0.8, by quadrature", 2, flow])
    sizes = (100, 200, 400, 800)
    errors = sweeps.step_against_recursion(sizes, 0.1)
    page.table("Orders in eps", ["error", "predicted", "fitted"], rows)
    page.table(
        "One step against its closed form, eps = 0.1", ["n", "error of the variance"],
        list(zip(sizes, errors, strict=True)),
    )  # fmt: skip
    for panel, title in ((one, "one step"), (whole, "the whole flow")):
        legend(panel)
        tidy(panel, title, "eps", "root mean square error")
    page.figure(figure, "Errors of one step and of a flow; dashed lines have the predicted slope.")


def _scores(page: Page, quick: bool) -> None:
    page.heading("The score that particles see")
    generator = torch.Generator().manual_seed(0)
    figure, axes = sheet(1, 3)
    bias, noise, both = axes[0]
    law = sweeps.NORMAL
    biases = sweeps.score_biases(law, STEPS[:4])
    rows = [["bias over eps", 1.0, draw_order(bias, STEPS[:4], biases, "bias", PALETTE[0], 1)]]
    sizes = (100, 200, 400, 800) if quick else (125, 250, 500, 1000, 2000)
    for d, colour in ((1, PALETTE[0]), (2, PALETTE[1])):
        errors = sweeps.score_noise(d, 0.2, sizes, 4 if quick else 16, generator)
        fitted = draw_order(noise, sizes, errors, f"{d}-D", colour, -0.5)
        rows.append([f"noise over n, {d}-D", -0.5, fitted])
        small = (0.02, 0.04, 0.08)
        errors = [
            sweeps.score_noise(d, eps, sizes[-2:-1], 4 if quick else 16, generator)[0]
            for eps in small
        ]
        fitted = draw_order(both, small, errors, f"{d}-D", colour, -(d + 2) / 4)
        rows.append([f"noise over eps, {d}-D", -(d + 2) / 4, fitted])
    page.table("Orders of the score estimate", ["error", "predicted", "fitted"], rows)
    words = (("bias", "eps"), ("noise", "n"), (f"noise, n = {sizes[-2]}", "eps"))
    for panel, (title, xlabel) in zip(axes[0], words, strict=True):
        legend(panel)
        tidy(panel, title, xlabel)
    page.figure(figure, "Bias of order eps; noise like n^(-1/2) eps^(-(d + 2)/4).")


def _floor(page: Page, quick: bool) -> None:
    page.heading("The floor: eps below the spacing of particles")
    sizes = (100, 400) if quick else (100, 400, 1600)
    steps = [10**power for power in (-7, -6, -5, -4.5, -4, -3.5, -3, -2.5, -2, -1)]
    found = sweeps.freezing(sizes, steps)
    figure, axes = sheet(1, 2)
    for colour, (n, pairs) in zip(PALETTE, found.items(), strict=False):
        for panel, which in zip(axes[0], (0, 1), strict=True):
            values = [pair[which] for pair in pairs]
            panel.semilogx(steps, values, "o-", color=colour, markersize=3, label=f"n = {n}")
            legend(panel)
    tidy(axes[0][0], "speed of one step; the truth is 1", "eps")
    tidy(axes[0][1], "weight particles keep for themselves", "eps")
    axes[0][1].axhline(0.5, color=QUIET, linewidth=0.8, linestyle="--")
    page.figure(figure, "Below the spacing each particle sees only itself, and the flow freezes.")
    frozen = [(n, max(eps for eps, pair in zip(steps, pairs, strict=True) if pair[1] > 0.5))
              for n, pairs in found.items()]  # fmt: skip
    page.table("Largest eps of this sweep that freezes N(0, 1)", ["n", "eps"], frozen)


def _elasticity(page: Page, quick: bool) -> None:
    page.heading("lam: from mean-shift to heat")
    lams = [0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0]
    found = sweeps.speeds_over_lam(lams, (0.4, 0.1) if quick else (0.4, 0.1, 0.05), 300)
    figure, axes = sheet(1, 2)
    left, right = axes[0]
    for colour, (eps, (measured, exact)) in zip(PALETTE, found.items(), strict=False):
        left.plot(lams, exact, color=colour, label=f"eps = {eps:g}")
        left.plot(lams, measured, "o", color=colour, markersize=3)
        ratio = [(1 - lam) / eps for lam in lams[:-1]]
        right.semilogx(ratio, exact[:-1], color=colour)
        right.semilogx(ratio, measured[:-1], "o", color=colour, markersize=3)
    legend(left)
    tidy(left, "speed over lam", "lam")
    tidy(right, "the axis that matters", "(1 - lam) / eps")
    page.figure(
        figure,
        "Speed on N(0, 1), lines in closed form: 2 at lam = 0, 1 at lam = 1 for small eps. For any "
        "fixed lam < 1 a small enough eps ends at 2: what matters is (1 - lam)/eps.",
    )
