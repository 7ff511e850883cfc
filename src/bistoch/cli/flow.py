"""The commands of particle flows: `bistoch flow gaussian`, `mixture`, `fashion` and more.

Every run shows its progress and ends with a report; an interrupted flow is resumed.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bistoch.cli.errors import user_errors
from bistoch.cli.options import Device, option

flow = typer.Typer(
    help="Move particles by attention, compare with exact solutions, and write a report.",
    no_args_is_help=True,
)


class Direction(StrEnum):
    """The direction of a flow."""

    HEAT = "heat"
    CLUSTER = "cluster"


Eps = Annotated[float, option("Temperature, which is the length of a step.")]
Time = Annotated[float, option("Time at the end of the flow.")]
Count = Annotated[int, option("Number of particles.", "--n", min=2)]
Seed = Annotated[int, option("Seed of the particles.", min=0, max=2**31 - 1)]
Lam = Annotated[float, option("Elasticity: 1 is heat, 0 kernel mean-shift.")]
Quick = Annotated[bool, option("Smaller sweeps.", "--quick")]
Index = Annotated[int, option("Index in the data set.", min=0)]
Steps = Annotated[int, option("Number of steps.", min=1)]
Out = Annotated[Path, option("Folder for report, numbers and figures.", file_okay=False)]
Images = Annotated[int, option("Number of images; above 4000 the whole set.", "--n", min=20)]
Source = Annotated[
    str, typer.Argument(help="spiral, rings, modelnet10, or a .npy, .csv or .txt file of points.")
]
Picture = Annotated[Path | None, option("An image file; by default a shipped one.", dir_okay=False)]


def _run(name: str, device: str, **options: Any) -> None:
    from bistoch.lab import flow as lab
    from bistoch.lab.device import read_device

    where = read_device(device, f"flow {name}")
    getattr(lab, f"run_{name}")(**options, device=where, console=Console())


@flow.command()
@user_errors()
def gaussian(
    n: Count = 2000,
    eps: Eps = 0.1,
    time: Time = 2.0,
    seed: Seed = 0,
    quick: Quick = False,
    device: Device = "cpu",
    out: Out = Path("flow-gaussian"),
) -> None:
    """N(0, 1): variance, orders in eps, score, the error floor at small eps, and lam."""
    _run("gaussian", n=n, eps=eps, time=time, seed=seed, quick=quick, device=device, out=out)


@flow.command()
@user_errors()
def mixture(
    n: Count = 2000,
    eps: Eps = 0.01,
    time: Time = 2.0,
    seed: Seed = 0,
    quick: Quick = False,
    device: Device = "cpu",
    out: Out = Path("flow-mixture"),
) -> None:
    """A mixture of two Gaussians: densities, W2 and quantiles against the exact solution."""
    _run("mixture", n=n, eps=eps, time=time, seed=seed, quick=quick, device=device, out=out)


@flow.command()
@user_errors()
def fashion(
    n: Images = 4000,
    eps: Annotated[float, option("Temperature, for pixels in [0, 1]; published is 100.")] = 100.0,
    steps: Steps = 4,
    lam: Lam = 1.0,
    device: Device = "cpu",
    out: Out = Path("flow-fashion"),
) -> None:
    """FashionMNIST in 784 dimensions, in both directions, with the nearest images."""
    _run("fashion", n=n, eps=eps, steps=steps, lam=lam, device=device, out=out)


@flow.command()
@user_errors()
def points(
    source: Source = "spiral",
    n: Count = 2000,
    eps: Eps = 0.01,
    time: Time = 0.2,
    index: Index = 0,
    lam: Lam = 1.0,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = Path("flow-points"),
) -> None:
    """A point cloud in both directions; its exact heat flow is the cloud with noise."""
    options = {"n": n, "eps": eps, "time": time, "index": index, "lam": lam, "seed": seed}
    _run("points", source=source, **options, device=device, out=out)


@flow.command()
@user_errors()
def image(
    picture: Picture = None,
    side: Annotated[int, option("Largest number of pixels of its longer side.", min=2)] = 48,
    eps: Annotated[float, option("Temperature, in squared pixels.")] = 3.0,
    steps: Steps = 6,
    contrast: Annotated[float, option("Distance of black and white, in pixels.")] = 12.0,
    direction: Annotated[Direction, option("heat or cluster.")] = Direction.CLUSTER,
    index: Index = 0,
    device: Device = "cpu",
    out: Out = Path("flow-image"),
) -> None:
    """The pixels of an image as particles, position and brightness, for three elasticities."""
    _run(
        "image", picture=picture, side=side, eps=eps, steps=steps, contrast=contrast,
        direction=direction.value, index=index, device=device, out=out,
    )  # fmt: skip


@flow.command()
@user_errors()
def cluster(
    n: Count = 300,
    dim: Annotated[int, option("Dimensions of the tokens on the sphere.", min=2)] = 16,
    eps: Annotated[float, option("Temperature per dimension.")] = 0.25,
    depth: Annotated[int, option("Number of layers.", min=1)] = 24,
    skip: Annotated[float, option("Weight of the residual.", min=0.0, max=1.0)] = 0.5,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = Path("flow-cluster"),
) -> None:
    """Tokens under layers of attention: rank and clusters from softmax to Sinkhorn."""
    _run(
        "cluster", n=n, dim=dim, eps=eps, depth=depth, skip=skip, seed=seed, device=device, out=out
    )
