"""What the page on flows shows."""

import torch
from making.drawing import PALETTE, decorate, put_table, save, seeded

from bistoch.flows import flow_variance, heat_flow, step_variance, two_bumps, w2_to_law
from bistoch.lab.drawing import sheet
from bistoch.lab.flow import clusters, sweeps
from bistoch.lab.flow.figures import draw_clouds, draw_densities, draw_order, fitted_order


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
