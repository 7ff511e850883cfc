"""`bistoch flow cluster`: what layers of attention do to tokens, from softmax to Sinkhorn."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from bistoch.analysis import metrics
from bistoch.flows import barycentric_projection
from bistoch.lab.device import CPU
from bistoch.lab.drawing import sheet
from bistoch.lab.flow.figures import draw_clouds, draw_curves
from bistoch.lab.flow.report import FlowReport
from bistoch.lab.progress import progress

LAMS = {"softmax (lam = 0)": 0.0, "elastic (lam = 0.5)": 0.5, "sinkhorn (lam = 1)": 1.0}
MEASURES = {
    "residual": "distance from the mean token, as a share",
    "rank": "effective rank of the tokens",
    "cosine": "mean cosine of two tokens",
    "clusters": "clusters of tokens",
}


def measure_tokens(x: Tensor, *, apart: float = 0.1) -> dict[str, float]:
    """How far tokens have collapsed.

    residual and cosine are those of `analysis.metrics`, rank the effective rank of what differs
    from the mean token; clusters are counted by joining tokens nearer than `apart` times the root
    mean square norm.

    >>> x = torch.eye(3, dtype=torch.float64).repeat(2, 1)
    >>> {name: round(value, 3) for name, value in measure_tokens(x).items()}
    {'residual': 0.816, 'rank': 2.0, 'cosine': 0.2, 'clusters': 3.0}
    """
    residual = metrics.rank_one_residual(x).item()
    near = torch.cdist(x, x) < apart * x.square().sum(-1).mean().sqrt()
    return {
        "residual": residual,
        # rounding is not rank
        "rank": metrics.effective_rank(x - x.mean(0)).item() if residual > 1e-12 else 0.0,
        "cosine": metrics.mean_cosine(x).item(),
        "clusters": float(_components(near)),
    }


def layers(x: Tensor, eps: float, depth: int, lam: float, *, skip: float, sphere: bool) -> Tensor:
    """Tokens after each of `depth` layers of attention, the start first: (depth + 1, n, d).

    A layer is `x <- skip x + (1 - skip) B(x)`. On the sphere tokens are brought back to their
    common length, where squared distances and dot products are the same scores: without balance it
    is then ordinary softmax attention.
    """
    length = x.norm(dim=-1).mean()
    found, potential = [x], None
    for _ in range(depth):
        seen = barycentric_projection(x, eps, lam=lam, tol=1e-5, iters=3000, potential=potential)
        x = skip * x + (1 - skip) * seen
        if sphere:
            x = x * (length / x.norm(dim=-1, keepdim=True).clamp_min(1e-12))
        found.append(x)
    return torch.stack(found).cpu()


def run_cluster(
    *,
    n: int,
    dim: int,
    eps: float,
    depth: int,
    skip: float,
    seed: int,
    out: Path,
    console: Console,
    device: torch.device = CPU,
) -> Path:
    """Tokens in the plane as pictures, tokens on a sphere as curves, for three elasticities."""
    report = FlowReport(
        "cluster", "Tokens under layers of attention", out, console, device, n=n, dim=dim, eps=eps,
        depth=depth, skip=skip, seed=seed,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    plane = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    tokens = torch.randn(n, dim, dtype=torch.float64, generator=generator)
    # a few themes, so that there is something to find
    themes = torch.randn(5, dim, dtype=torch.float64, generator=generator)
    tokens = tokens + themes[torch.arange(n) % 5]
    tokens = tokens / tokens.norm(dim=-1, keepdim=True) * dim**0.5

    pictures: dict[str, dict[float, Tensor]] = {}
    curves: dict[tuple[str, str], list[dict[str, float]]] = {}
    with progress(console, len(LAMS)) as shown:
        for name, lam in LAMS.items():
            shown.start(name)
            flat = layers(plane.to(device), eps, depth, lam, skip=0.0, sphere=False)
            pictures[name] = {float(k): flat[k] for k in _moments(depth)}
            for label, share in (("no skip", 0.0), (f"skip {skip:g}", skip)):
                states = layers(tokens.to(device), eps * dim, depth, lam, skip=share, sphere=True)
                curves[name, label] = [measure_tokens(state) for state in states]
            shown.finish(name)
    ranks = [f"{curves[name, 'no skip'][-1]['rank']:.1f} with {name}" for name in LAMS]
    report.finding(
        f"After {depth} layers without skip connections, tokens on a sphere in {dim} dimensions "
        f"keep an effective rank of {', '.join(ranks)}.",
        draw_clouds(pictures, plane[:, 0]),
        "Tokens in the plane after some layers (t counts layers), without skip connections.",
    )
    figure, axes = sheet(2, 4, width=3.1)
    steps = list(range(depth + 1))
    for line, label in zip(axes, ("no skip", f"skip {skip:g}"), strict=True):
        for panel, (key, title) in zip(line, MEASURES.items(), strict=True):
            rows = {name: [row[key] for row in curves[name, label]] for name in LAMS}
            draw_curves(panel, steps, rows, f"{title}\n({label})", "layer")
    report.figure(figure, f"Tokens on a sphere in {dim} dimensions: how attention collapses them.")
    report.numbers(
        "Tokens on the sphere at the end", ["attention", "skip", *MEASURES],
        [[name, label, *(rows[-1][key] for key in MEASURES)]
         for (name, label), rows in curves.items()],
    )  # fmt: skip
    return report.finish()


def _moments(depth: int) -> Sequence[int]:
    return sorted({0, 1, depth // 6, depth // 3, 2 * depth // 3, depth})


def _components(near: Tensor) -> int:
    """The number of groups that tokens form through pairs that are near."""
    label = torch.arange(len(near))
    for _ in range(len(near)):
        # the smallest label among the near ones spreads until nothing changes
        spread = torch.where(near, label, len(near)).amin(-1)
        if torch.equal(spread, label):
            break
        label = spread
    return len(label.unique())
