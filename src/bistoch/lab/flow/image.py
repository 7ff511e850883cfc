"""`bistoch flow image`: the pixels of a picture as particles, place and brightness."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from bistoch.flows import FlowState
from bistoch.lab.drawing import sheet, tidy
from bistoch.lab.flow.animate import animate
from bistoch.lab.flow.draw import draw_curves, draw_pictures
from bistoch.lab.flow.page import Page, check_index
from bistoch.lab.flow.track import follow

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
            'reading a picture needs Pillow; install it with: pip install "bistoch[plot]"'
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
) -> Path:
    """A picture whose pixels attend to each other: clusters smooth it, heat frays it."""
    out.mkdir(parents=True, exist_ok=True)
    if not contrast > 0:
        raise ValueError(f"flow image: contrast must be positive, but it is {contrast:g}")
    image = read_picture(picture, side, index)
    x = to_particles(image, contrast)
    source = f"--picture {picture} --side {side}" if picture else f"--index {index}"
    words = f"--eps {eps:g} --steps {steps} --contrast {contrast:g} --direction {direction}"
    page = Page("A picture under attention", f"bistoch flow image {source} {words}", out, console)
    time = eps * steps
    keep = [time * share / 12 for share in range(13)]

    def measure(state: FlowState) -> dict[str, float]:
        values = state.particles[:, 2] / contrast
        return {"brightness": values.mean().item(), "deviation": values.std().item()}

    tracks = {
        name: follow(
            f"image-{lam:g}", x, time, eps, measure=measure, keep=keep, console=console, folder=out,
            direction=direction, lam=lam,
        )
        for name, lam in LAMS.items()
    }  # fmt: skip
    strips, heads = {}, []
    for name, track in tracks.items():
        page.warn(track.warnings)
        chosen = track.some(6)
        heads = [f"t = {at:.3g}" for at in chosen]
        strips[name.replace(" (", "\n(")] = [
            points[:, 2].reshape(image.shape) / contrast for points in chosen.values()
        ]
    page.figure(draw_pictures(strips, heads), "Brightness of each pixel's particle over time.")
    figure, axes = sheet(1, 2)
    times = next(iter(tracks.values())).times
    for panel, name in zip(axes[0], ("brightness", "deviation"), strict=True):
        draw_curves(panel, times, {k: track.curve(name) for k, track in tracks.items()}, {})
        tidy(panel, {"brightness": "mean brightness", "deviation": "its deviation"}[name], "time")
    page.figure(figure, "The balanced flow keeps the mean brightness exactly.")
    page.table(
        "Brightness at the end", ["flow", "mean before", "mean after", "deviation after", "passes"],
        [[name, track.curve("brightness")[0], track.curve("brightness")[-1],
          track.curve("deviation")[-1], sum(track.curve("passes"))]
         for name, track in tracks.items()],
    )  # fmt: skip
    balanced = tracks["balanced (lam = 1)"].snapshots

    def paint(axes: Any, points: Tensor) -> None:
        axes.scatter(points[:, 1], -points[:, 0], c=points[:, 2], cmap="gray", s=7, linewidths=0)
        axes.set(xticks=[], yticks=[], aspect="equal", facecolor="#e8f0f8")
        axes.set(xlim=(-3, image.shape[1] + 2), ylim=(-image.shape[0] - 2, 3))

    page.animation(
        animate(balanced.values(), paint, size=(3.6, 3.6)), "image.gif",
        "Pixels on their way, balanced.",
    )  # fmt: skip
    return page.write()
