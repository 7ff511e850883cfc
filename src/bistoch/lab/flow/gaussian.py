"""`bistoch flow gaussian`: a flow whose every number is known."""

from pathlib import Path

import torch
from rich.console import Console

from bistoch.flows import FlowState, flow_variance, step_variance, w2_to_law
from bistoch.lab.device import CPU
from bistoch.lab.drawing import PALETTE, QUIET, legend, row, tidy
from bistoch.lab.flow import sweeps
from bistoch.lab.flow.figures import REFERENCES, draw_curves, draw_densities, draw_points
from bistoch.lab.flow.report import FlowReport, Panel
from bistoch.lab.flow.trajectory import Trajectory

STEPS = (0.4, 0.2, 0.1, 0.05, 0.025)


def run_gaussian(
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
    """N(0, 1) under the heat flow, measured against the heat equation and the exact recursion."""
    report = FlowReport(
        "gaussian", "The heat flow of a Gaussian", out, console, device, n=n, eps=eps, time=time,
        seed=seed, quick=quick,
    )  # fmt: skip
    law = sweeps.NORMAL

    def measure(state: FlowState) -> dict[str, float]:
        near = w2_to_law(state.particles, law.after(state.time).quantile, fine=8)
        return {"variance": state.particles.var().item(), "w2": near}

    x = law.sample(n, generator=torch.Generator().manual_seed(seed))
    found = report.follow("gaussian", x, time, eps, measure, keep=4)
    _variances(report, found, time, eps)
    figure = draw_densities(
        found.snapshots, lambda t, at: law.after(t).density(at[:, None]),
        f"N(0, 1), n = {n}, eps = {eps:g}",
    )  # fmt: skip
    report.figure(figure, "Particles over the exact density.")
    _orders(report)
    _scores(report, quick)
    _freezing(report, quick)
    _elasticity(report, quick)
    return report.finish()


def _variances(report: FlowReport, found: Trajectory, time: float, eps: float) -> None:
    variances = found.curve("variance")
    start, end = variances[0], variances[-1]
    exact, own = flow_variance(1.0, time, eps), flow_variance(start, time, eps)
    # the published code leaves out the half of the cost: our recursion at half the temperature
    half = [1.0]
    for _ in exact[1:]:
        half.append(step_variance(half[-1], time / (len(exact) - 1) / 2).item())
    ends = {
        "heat equation": (1.0, 1 + time),
        "exact recursion of the step": (1.0, exact[-1]),
        "particles": (start, end),
        "exact recursion from their variance": (start, own[-1]),
        "published code (no half in the cost)": (1.0, half[-1]),
    }
    rows = [[name, first, last, last / (1 + time) - 1] for name, (first, last) in ends.items()]
    report.numbers("Variance at the end", ["", "start", "end", "off by"], rows)
    figure, (left, right) = row(2)
    curves = {"particles": variances, "1 + t": [1 + t for t in found.times], "published code": half}
    draw_curves(left, found.times, curves, "variance", dashes={**REFERENCES, "published code": ":"})
    far = {"W2 to N(0, 1 + t)": found.curve("w2")}
    draw_curves(right, found.times, far, "distance from the truth")
    right.set_ylim(0)
    report.finding(
        f"The variance of the particles grows from {start:.3f} to {end:.3f} in the time {time:g}: "
        f"the heat equation says {1 + time:.3f}, the exact recursion of the step from their own "
        f"variance {own[-1]:.3f}.",
        figure, "The variance grows by the time; without the half in the cost, by half.",
    )  # fmt: skip


def _orders(report: FlowReport) -> None:
    report.heading("How the error falls with eps")
    report.text(
        "The theory promises that one step is right up to o(eps). It is better: expanding "
        "the bridge one order further gives the second-order term of the probability flow exactly, "
        "so that one step errs by eps cubed and the flow by eps squared."
    )
    law, fewer = sweeps.NORMAL, STEPS[:-1]
    gaps = [1 + eps - step_variance(1.0, eps).item() for eps in STEPS]
    steps = [
        ("variance, closed form", STEPS, gaps, 3),
        ("particles, by quadrature", STEPS, sweeps.one_step_errors(law, STEPS), 3),
    ]
    flow = ("t = 0.8, by quadrature", fewer, sweeps.flow_errors(law, 0.8, fewer), 2)
    panels: list[Panel] = [("one step", "eps", steps), ("the whole flow", "eps", [flow])]
    report.orders("Orders in eps", "Errors of one step and of a flow.", panels)
    sizes = (100, 200, 400, 800)
    rows = list(zip(sizes, sweeps.step_against_recursion(sizes, 0.1), strict=True))
    head = ["n", "error of the variance"]
    report.numbers("One step against its closed form, eps = 0.1", head, rows)


def _scores(report: FlowReport, quick: bool) -> None:
    report.heading("The score that particles see")
    generator = torch.Generator().manual_seed(0)
    repeats, small = 4 if quick else 16, (0.02, 0.04, 0.08)
    sizes = (100, 200, 400, 800) if quick else (125, 250, 500, 1000, 2000)
    over_n, over_eps = [], []
    for d in (1, 2):
        errors = sweeps.score_noise(d, 0.2, sizes, repeats, generator)
        over_n.append((f"{d}-D", sizes, errors, -0.5))
        errors = [
            sweeps.score_noise(d, eps, sizes[-2:-1], repeats, generator)[0] for eps in small
        ]  # fmt: skip
        over_eps.append((f"{d}-D", small, errors, -(d + 2) / 4))
    bias = ("quadrature", STEPS[:4], sweeps.score_biases(sweeps.NORMAL, STEPS[:4]), 1)
    panels: list[Panel] = [
        ("bias", "eps", [bias]),
        ("noise", "n", over_n),
        (f"noise, n = {sizes[-2]}", "eps", over_eps),
    ]
    caption = "Bias of order eps; noise like n^(-1/2) eps^(-(d + 2)/4)."
    report.orders("Orders of the score estimate", caption, panels)


def _freezing(report: FlowReport, quick: bool) -> None:
    report.heading("The floor: eps below the spacing of particles")
    sizes = (100, 400) if quick else (100, 400, 1600)
    steps = [10**power for power in (-7, -6, -5, -4.5, -4, -3.5, -3, -2.5, -2, -1)]
    found = sweeps.freezing(sizes, steps)
    figure, panels = row(2)
    titles = ("speed of one step; the truth is 1", "weight particles keep for themselves")
    for which, (panel, title) in enumerate(zip(panels, titles, strict=True)):
        curves = {f"n = {n}": [pair[which] for pair in pairs] for n, pairs in found.items()}
        draw_points(panel, steps, curves, title, "eps")
    panels[1].axhline(0.5, color=QUIET, linewidth=0.8, linestyle="--")
    report.figure(figure, "Below the spacing each particle sees only itself, and the flow freezes.")
    frozen = [(n, max(eps for eps, pair in zip(steps, pairs, strict=True) if pair[1] > 0.5))
              for n, pairs in found.items()]  # fmt: skip
    report.numbers("Largest eps of this sweep that freezes N(0, 1)", ["n", "eps"], frozen)


def _elasticity(report: FlowReport, quick: bool) -> None:
    report.heading("lam: from mean-shift to heat")
    lams = [0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0]
    found = sweeps.speeds_over_lam(lams, (0.4, 0.1) if quick else (0.4, 0.1, 0.05), 300)
    figure, (left, right) = row(2)
    for colour, (eps, (measured, exact)) in zip(PALETTE, found.items(), strict=False):
        left.plot(lams, exact, color=colour, label=f"eps = {eps:g}")
        left.plot(lams, measured, "o", color=colour, markersize=3)
        ratio = [(1 - lam) / eps for lam in lams[:-1]]
        right.semilogx(ratio, exact[:-1], color=colour)
        right.semilogx(ratio, measured[:-1], "o", color=colour, markersize=3)
    legend(left)
    tidy(left, "speed over lam", "lam")
    tidy(right, "the axis that matters", "(1 - lam) / eps")
    report.figure(
        figure,
        "Speed on N(0, 1), lines in closed form: 2 at lam = 0, 1 at lam = 1 for small eps. For any "
        "fixed lam < 1 a small enough eps ends at 2: what matters is (1 - lam)/eps.",
    )
