"""The commands of particle flows: `bistoch flow gaussian`, `mixture`, `fashion` and more.

Every run shows its progress and ends with a report; an interrupted flow is resumed.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bistoch.cli.errors import user_errors

flow = typer.Typer(
    help="Move particles by attention, measure them against the truth, draw a page of figures.",
    no_args_is_help=True,
)


class Direction(StrEnum):
    """Which way a flow goes."""

    HEAT = "heat"
    CLUSTER = "cluster"


Eps = Annotated[float, typer.Option(help="Temperature and length of a step.")]
Time = Annotated[float, typer.Option(help="How long to flow.")]
Count = Annotated[int, typer.Option("--n", min=2, help="Number of particles.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the particles.")]
Lam = Annotated[float, typer.Option(help="Elasticity: 1 is heat, 0 kernel mean-shift.")]
Quick = Annotated[bool, typer.Option("--quick", help="Smaller sweeps.")]
Index = Annotated[int, typer.Option(min=0, help="Which one of the data set.")]
Steps = Annotated[int, typer.Option(min=1, help="Number of steps.")]
Out = Annotated[Path, typer.Option(help="Folder for page, numbers and pictures.", file_okay=False)]


@flow.command()
@user_errors()
def gaussian(
    n: Count = 2000,
    eps: Eps = 0.1,
    time: Time = 2.0,
    seed: Seed = 0,
    quick: Quick = False,
    out: Out = Path("flow-gaussian"),
) -> None:
    """N(0, 1): variance, orders in eps, score, the floor of small eps, and the axis lam."""
    from bistoch.lab.flow import run_gaussian

    run_gaussian(n=n, eps=eps, time=time, seed=seed, quick=quick, out=out, console=Console())


@flow.command()
@user_errors()
def mixture(
    n: Count = 2000,
    eps: Eps = 0.01,
    time: Time = 2.0,
    seed: Seed = 0,
    quick: Quick = False,
    out: Out = Path("flow-mixture"),
) -> None:
    """Two bumps melt into one: densities, W2 and quantiles against the exact law."""
    from bistoch.lab.flow import run_mixture

    run_mixture(n=n, eps=eps, time=time, seed=seed, quick=quick, out=out, console=Console())


@flow.command()
@user_errors()
def fashion(
    n: Annotated[
        int, typer.Option("--n", min=20, help="Number of pictures; above 4000 the whole set.")
    ] = 4000,
    eps: Annotated[
        float, typer.Option(help="Temperature, for pixels in [0, 1]; published is 100.")
    ] = 100.0,
    steps: Steps = 4,
    lam: Lam = 1.0,
    out: Out = Path("flow-fashion"),
) -> None:
    """FashionMNIST in 784 dimensions, in both directions, with what is nearest to each picture."""
    from bistoch.lab.flow import run_fashion

    run_fashion(n=n, eps=eps, steps=steps, lam=lam, out=out, console=Console())


@flow.command()
@user_errors()
def points(
    source: Annotated[
        str,
        typer.Argument(help="spiral, rings, modelnet10, or a .npy, .csv or .txt file of points."),
    ] = "spiral",
    n: Count = 2000,
    eps: Eps = 0.01,
    time: Time = 0.2,
    index: Index = 0,
    lam: Lam = 1.0,
    seed: Seed = 0,
    out: Out = Path("flow-points"),
) -> None:
    """A cloud of points spreads and clusters; its exact heat flow is the cloud with noise."""
    from bistoch.lab.flow import run_points

    run_points(
        source=source, n=n, eps=eps, time=time, index=index, lam=lam, seed=seed, out=out,
        console=Console(),
    )  # fmt: skip


@flow.command()
@user_errors()
def image(
    picture: Annotated[
        Path | None, typer.Option(help="A picture file; by default a shipped one.", dir_okay=False)
    ] = None,
    side: Annotated[int, typer.Option(min=2, help="Pixels of its longer side at most.")] = 48,
    eps: Annotated[float, typer.Option(help="Temperature, in squared pixels.")] = 3.0,
    steps: Steps = 6,
    contrast: Annotated[
        float, typer.Option(help="How many pixels apart black and white are.")
    ] = 12.0,
    direction: Annotated[Direction, typer.Option(help="Which way.")] = Direction.CLUSTER,
    index: Index = 0,
    out: Out = Path("flow-image"),
) -> None:
    """The pixels of a picture as particles, place and brightness, for three elasticities."""
    from bistoch.lab.flow import run_image

    run_image(
        picture=picture, side=side, eps=eps, steps=steps, contrast=contrast,
        direction=direction.value, index=index, out=out, console=Console(),
    )  # fmt: skip


@flow.command()
@user_errors()
def cluster(
    n: Count = 300,
    dim: Annotated[int, typer.Option(min=2, help="Dimensions of the tokens on the sphere.")] = 16,
    eps: Annotated[float, typer.Option(help="Temperature per dimension.")] = 0.25,
    depth: Annotated[int, typer.Option(min=1, help="Number of layers.")] = 24,
    skip: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the skip.")] = 0.5,
    seed: Seed = 0,
    out: Out = Path("flow-cluster"),
) -> None:
    """Tokens under layers of attention: rank and clusters from softmax to Sinkhorn."""
    from bistoch.lab.flow import run_cluster

    run_cluster(
        n=n, dim=dim, eps=eps, depth=depth, skip=skip, seed=seed, out=out, console=Console()
    )
