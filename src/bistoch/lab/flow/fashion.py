"""`bistoch flow fashion`: pictures of clothes as particles in 784 dimensions."""

import warnings
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from bistoch.flows import FlowState, self_transport, self_transport_slope, step_variance, w2_sliced
from bistoch.lab.device import CPU
from bistoch.lab.drawing import row
from bistoch.lab.flow.figures import REFERENCES, draw_curves, draw_pictures
from bistoch.lab.flow.points import noisy
from bistoch.lab.flow.report import FlowReport
from bistoch.lab.flow.trajectory import Trajectory

# pictures drawn, and particles whose nearest picture is looked up
SHOWN, ASKED = 6, 500
SCALES = (1.0, 10.0, 30.0, 100.0, 1000.0, 255.0**2 * 100)


def read_fashion(n: int) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """The first n pictures with pixels in [0, 1], their classes, and the names of these.

    The shipped part is enough for 4000; more are read from the whole set.
    """
    from bistoch.lab.data import load

    data = load("fashion-mnist-small" if n <= 4000 else "fashion-mnist")
    if n > len(data.x_train):
        raise ValueError(
            f"flow fashion: n must be at most {len(data.x_train)}, the pictures of FashionMNIST, "
            f"but it is {n}"
        )
    chosen = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(0))[:n]
    images = torch.from_numpy(data.x_train)[chosen].reshape(len(chosen), -1) / 255.0
    return images.float(), torch.from_numpy(data.y_train)[chosen].long(), data.classes


def run_fashion(
    *,
    n: int,
    eps: float,
    steps: int,
    lam: float,
    out: Path,
    console: Console,
    device: torch.device = CPU,
) -> Path:
    """Pictures in both directions, with what is nearest to them, and what eps means in pixels."""
    x, labels, _ = read_fashion(n)
    report = FlowReport(
        "fashion",
        "FashionMNIST under attention",
        out,
        console,
        device,
        n=n,
        eps=eps,
        steps=steps,
        lam=lam,
    )
    _scales(report, x, eps)
    found = {
        way: report.follow(
            f"fashion-{way}", x, eps * steps, eps, _measure(x, labels), keep=steps, direction=way,
            lam=lam,
        )
        for way in ("heat", "cluster")
    }  # fmt: skip
    ends = {way: one.rows[-1] for way, one in found.items()}
    start = found["heat"].rows[0]["variance"]
    sentence = (
        f"After {steps} steps at eps = {eps:g} the total variance of {n} pictures goes from "
        f"{start:.1f} to {ends['heat']['variance']:.1f} with heat and to "
        f"{ends['cluster']['variance']:.2g} in the other direction; "
        f"{100 * ends['heat']['itself']:.0f} % and {100 * ends['cluster']['itself']:.0f} % of the "
        "pictures are still nearest to themselves."
    )
    for way, one in found.items():
        strips = {
            f"{number}": [points[number].reshape(28, 28) for points in one.snapshots.values()]
            for number in range(min(SHOWN, n))
        }
        heads = [f"t = {time:.3g}" for time in one.snapshots]
        caption = f"Six pictures over time, direction {way}."
        if way == "heat":
            report.finding(sentence, draw_pictures(strips, heads), caption, photos=True)
        else:
            report.figure(draw_pictures(strips, heads), caption, photos=True)
    _variances(report, x, found, eps, lam)
    _tables(report, x, found)

    def paint(axes: Any, points: Tensor) -> None:
        rows = points[:12].reshape(-1, 6, 28, 28)
        axes.imshow(torch.cat([torch.cat(list(line), 1) for line in rows], 0).numpy(), cmap="gray")
        axes.set_axis_off()

    report.animation(
        "fashion", "From clusters to the pictures to heat, each frame on its own scale of grey.",
        [*reversed(found["cluster"].snapshots.values()), *found["heat"].snapshots.values()], paint,
        size=(4.8, 1.8), milliseconds=400, photos=True,
    )  # fmt: skip
    return report.finish()


def _measure(x: Tensor, labels: Tensor) -> Any:
    def measure(state: FlowState) -> dict[str, float]:
        now = state.particles
        asked = now[:ASKED]
        distances = torch.cdist(asked, x)
        nearest = distances.argmin(-1)
        same = (nearest == torch.arange(len(asked))).double().mean().item()
        others = distances.scatter(1, torch.arange(len(asked))[:, None], torch.inf).argmin(-1)
        return {
            "variance": now.var(0).sum().item(),
            "mean": now.mean().item(),
            "outside": ((now < 0) | (now > 1)).double().mean().item(),
            # products of all pairs are rounded: a picture is at distance zero from itself
            "distance": (asked - x[nearest]).norm(dim=-1).mean().item(),
            "itself": same,
            "class": (labels[others] == labels[: len(asked)]).double().mean().item(),
        }

    return measure


def _scales(report: FlowReport, x: Tensor, eps: float) -> None:
    report.heading("What eps means in pixels")
    # rounding of float32 would be felt at the smallest eps
    some = x[: min(len(x), 1000)].double()
    half = (torch.cdist(some, some).square().sum() / (2 * len(some) * (len(some) - 1))).item()
    values = torch.linalg.eigvalsh(some.T.cov()).clamp_min(0)
    report.text(
        f"With pixels in [0, 1] half the mean squared distance of two pictures is {half:.1f}, and "
        f"their largest principal variance {values[-1].item():.1f}. With pixels from 0 to 255 both "
        "are 65025 times as large, and eps = 100 there is eps = 0.0015 here."
    )
    rows = []
    for scale in sorted({0.0015, *SCALES, eps}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = self_transport(some, scale, tol=1e-3)
        report.warn([str(warning.message) for warning in caught])
        slopes = self_transport_slope(values[-3:].flip(0).double(), scale)
        rows.append([
            f"{scale:g}", scale / half, found.self_weight.item(), int(found.iterations),
            *(f"{slope:.3f}" for slope in slopes.tolist()),
        ])  # fmt: skip
    report.numbers(
        f"One step on {len(some)} pictures",
        ["eps", "over half the mean squared distance", "self-weight", "passes",
         "B/x, 1st axis (Gaussian)", "2nd", "3rd"],
        rows,
    )  # fmt: skip


def _variances(
    report: FlowReport, x: Tensor, found: dict[str, Trajectory], eps: float, lam: float
) -> None:
    curves, dashes = {}, {**REFERENCES, "exact heat": ":"}
    for way, one in found.items():
        curves[way] = one.curve("variance")
        values = torch.linalg.eigvalsh(x.double().T.cov()).clamp_min(1e-12)
        gaussian = [values.sum().item()]
        for _ in one.times[1:]:
            values = step_variance(values, eps, lam, way)
            gaussian.append(values.sum().item())
        curves[f"{way}, if Gaussian"], dashes[f"{way}, if Gaussian"] = gaussian, "--"
    times = found["heat"].times
    curves["exact heat"] = [curves["heat"][0] + x.shape[1] * t for t in times]
    figure, (left, right) = row(2)
    draw_curves(left, times, curves, "total variance", dashes=dashes)
    left.set_yscale("log")
    far = {way: one.curve("distance") for way, one in found.items()}
    draw_curves(right, times, far, "distance to the nearest original")
    report.figure(
        figure,
        "Variance against the recursion of a Gaussian with the same covariance, and against the "
        "heat equation: an eps far above the variances of most axes is one giant step.",
    )


def _tables(report: FlowReport, x: Tensor, found: dict[str, Trajectory]) -> None:
    columns = {
        "variance": "variance", "mean": "mean pixel", "outside": "outside [0, 1]",
        "distance": "distance", "itself": "itself nearest", "class": "next of its class",
        "self_weight": "self- weight", "passes": "passes",
    }  # fmt: skip
    for way, one in found.items():
        rows = [
            [f"{time:g}", *(line[name] for name in columns)]
            for time, line in zip(one.times, one.rows, strict=True)
        ]
        head = ["t", *columns.values()]
        report.numbers(f"Nearest originals, direction {way}", head, rows)
    generator = torch.Generator().manual_seed(0)
    time, end = max(found["heat"].times), found["heat"].last
    first, second = noisy(x, time, generator), noisy(x, time, generator)
    seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
    report.numbers(
        "Sliced W2 at the end", ["flow to noisy pictures", "two draws of noisy pictures"],
        [[w2_sliced(end, first, generator=seeds[0]), w2_sliced(second, first, generator=seeds[1])]],
    )  # fmt: skip
