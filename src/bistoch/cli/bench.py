"""The command that times: `bistoch bench`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bistoch.cli.errors import user_errors
from bistoch.cli.recipe_options import Device


@user_errors()
def bench(
    n: Annotated[
        list[int] | None,
        typer.Option(help="Number of tokens; repeat for several.", show_default="64 .. 16384"),
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="Number of heads.", show_default="8, and 1 beyond n = 8192")
    ] = None,
    dim: Annotated[int, typer.Option(help="Features of a head.")] = 64,
    iters: Annotated[
        int | None, typer.Option(help="Iterations.", show_default="10, and 5 at lam 0.5")
    ] = None,
    lam: Annotated[
        float | None, typer.Option(help="Elasticity.", show_default="1, and 0.5 with 5 iterations")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Number of threads.", show_default="those of torch")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="Interleaved rounds; the best counts.", show_default="7, or 3 if quick"),
    ] = None,
    backward: Annotated[bool, typer.Option(help="Also time forward with backward.")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="Two sizes, under two minutes.")] = False,
    operators: Annotated[
        bool, typer.Option("--operators", help="Time every operator with its default options.")
    ] = False,
    causal: Annotated[
        bool, typer.Option("--causal", help="Time causal balance against causal softmax.")
    ] = False,
    flows: Annotated[
        bool, typer.Option("--flows", help="Time a step of a heat flow against other libraries.")
    ] = False,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for JSON and figure.", file_okay=False)] = Path(
        "bench-results"
    ),
) -> None:
    """Check results against the reference, then time them relative to softmax attention.

    With peak memory and growth in n. The same command resumes an interrupted run.
    """
    from bistoch.lab.bench import Options, run_bench, run_flow_bench

    options = Options(
        n=tuple(n or ()), heads=heads, dim=dim, lam=lam, iters=iters, threads=threads,
        rounds=rounds, backward=backward, quick=quick, operators=operators, causal=causal,
        device=device,
    )  # fmt: skip
    if flows and device != "cpu":
        raise ValueError("bench: --flows runs on the CPU; leave --device out")
    out.mkdir(parents=True, exist_ok=True)
    if not flows:
        run_bench(options, out, Console())
        return
    run_flow_bench(
        options.n, rounds=rounds, threads=threads, quick=quick, out=out, console=Console()
    )
