"""`bistoch flow image`: the pixels of a picture as particles, place and brightness."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from bistoch.flows import FlowState
from bistoch.lab.device import CPU
from bistoch.lab.drawing import row
from bistoch.lab.flow.figures import draw_curves, draw_pictures
from bistoch.lab.flow.report import FlowReport, check_index

LAMS = {"mean-shift (lam = 0)": 0.0, "elastic (lam = 0.5)": 0.5, "balanced (lam = 1)": 1.0}


def read_picture(path: Path | None, side: int, index: int) -> Tensor:
    """Brightness in [0, 1] of a picture of at most side x side pixels, by default a shipped one."""
    if path is None:
        from bistoch.lab.data import load

        pictures = load("fashion-mnist-small").x_train
        check_index("flow image", index, len(pictures))
        return torch.from_numpy(pictures[index] / 255.0)
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ImportError(
            'reading a picture needs Pillow; install it with: pip install "bistoch[images]"'
        ) from None
    if not path.exists():
        raise ValueError(f"flow image: there is no file {str(path)!r}")
    try:
        with Image.open(path) as picture:
            grey = picture.convert("L")
            grey.thumbnail((side, side))
            return torch.from_numpy(np.asarray(grey, np.float64) / 255)
    except UnidentifiedImageError:
        raise ValueError(f"flow image: {path.name} is not a picture that Pillow can read") from None


def to_particles(picture: Tensor, contrast: float) -> Tensor:
    """One particle per pixel: row and column in pixels, and brightness times `contrast`.

    >>> to_particles(torch.tensor([[0.0, 1.0]]), 8.0)
    tensor([[0., 0., 0.],
            [0., 1., 8.]], dtype=torch.float64)
    """
    rows, columns = picture.shape
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).double()
    return torch.cat((places, contrast * picture.double().reshape(-1, 1)), -1)


def run_image(
    *,
    picture: Path | None,
    side: int,
    eps: float,
    steps: int,
    contrast: float,
    direction: str,
    index: int,
    out: Path,
    console: Console,
    device: torch.device = CPU,
) -> Path:
    """A picture whose pixels attend to each other: clusters smooth it, heat frays it."""
    if not contrast > 0:
        raise ValueError(f"flow image: contrast must be positive, but it is {contrast:g}")
    image = read_picture(picture, side, index)
    x = to_particles(image, contrast)
    own, shipped = (side, None) if picture else (None, index)
    report = FlowReport(
        "image", "A picture under attention", out, console, device, picture=picture, side=own,
        index=shipped, eps=eps, steps=steps, contrast=contrast, direction=direction,
    )  # fmt: skip

    def measure(state: FlowState) -> dict[str, float]:
        values = state.particles[:, 2] / contrast
        return {"brightness": values.mean().item(), "deviation": values.std().item()}

    found = {
        name: report.follow(
            f"image-{lam:g}", x, eps * steps, eps, measure, keep=12, direction=direction, lam=lam
        )
        for name, lam in LAMS.items()
    }
    strips, heads = {}, []
    for name, one in found.items():
        chosen = one.some(6)
        heads = [f"t = {at:.3g}" for at in chosen]
        strips[name.replace(" (", "\n(")] = [
            points[:, 2].reshape(image.shape) / contrast for points in chosen.values()
        ]
    means = {name: one.curve("brightness") for name, one in found.items()}
    mean_shift, _, balanced = (values[-1] for values in means.values())
    report.finding(
        f"Balanced attention keeps the mean brightness, {means['balanced (lam = 1)'][0]:.4f} "
        f"before and {balanced:.4f} after {steps} steps; mean-shift ends at {mean_shift:.4f}.",
        draw_pictures(strips, heads), "Brightness of each pixel's particle over time.", photos=True,
    )  # fmt: skip
    figure, panels = row(2)
    times = next(iter(found.values())).times
    titles = {"brightness": "mean brightness", "deviation": "its deviation"}
    for panel, (key, title) in zip(panels, titles.items(), strict=True):
        draw_curves(panel, times, {name: one.curve(key) for name, one in found.items()}, title)
    report.figure(figure, "The balanced flow keeps the mean brightness exactly.")
    report.numbers(
        "Brightness at the end", ["flow", "mean before", "mean after", "deviation after", "passes"],
        [[name, one.curve("brightness")[0], one.curve("brightness")[-1],
          one.curve("deviation")[-1], sum(one.curve("passes"))]
         for name, one in found.items()],
    )  # fmt: skip

    def paint(axes: Any, points: Tensor) -> None:
        axes.scatter(points[:, 1], -points[:, 0], c=points[:, 2], cmap="gray", s=7, linewidths=0)
        axes.set(xticks=[], yticks=[], aspect="equal", facecolor="#e8f0f8")
        axes.set(xlim=(-3, image.shape[1] + 2), ylim=(-image.shape[0] - 2, 3))

    frames = found["balanced (lam = 1)"].snapshots.values()
    report.animation(
        "image", "Pixels on their way, balanced.", frames, paint, photos=True, size=(3.6, 3.6)
    )
    return report.finish()
