"""The command that times: `bistoch bench`."""

from pathlib import Path
from typing import Annotated

from rich.console import Console

from bistoch.cli.errors import user_errors
from bistoch.cli.options import Device, option

Sizes = Annotated[
    list[int] | None, option("Number of tokens; repeat for several.", default="64 .. 16384")
]
Heads = Annotated[int | None, option("Number of heads.", default="8, and 1 beyond n = 8192")]
Iters = Annotated[int | None, option("Iterations.", default="10, and 5 at lam 0.5")]
Lam = Annotated[float | None, option("Elasticity.", default="1, and 0.5 with 5 iterations")]
Threads = Annotated[int | None, option("Number of threads.", default="those of torch")]
Rounds = Annotated[
    int | None, option("Interleaved rounds; the best counts.", default="7, or 3 if quick")
]
Operators = Annotated[bool, option("Time every operator with its default options.", "--operators")]
Causal = Annotated[bool, option("Time causal balance against causal softmax.", "--causal")]
Flows = Annotated[bool, option("Time a step of a heat flow against other libraries.", "--flows")]
Long = Annotated[
    bool, option("Time what is meant for long sequences, to n = 65536, with memory.", "--long")
]
CompileTable = Annotated[
    bool,
    option("Compile the GPU kernels for GPUs that are not here, time nothing.", "--compile-table"),
]
RandomCalls = Annotated[
    int, option("With --compile-table: compile so many kernels of random calls too.", min=0)
]
Tune = Annotated[
    bool, option("Find the fastest blocks of the GPU kernels on this device.", "--tune")
]
Out = Annotated[Path, option("Folder for JSON and figure.", file_okay=False)]


@user_errors()
def bench(
    n: Sizes = None,
    heads: Heads = None,
    dim: Annotated[int, option("Features of a head.")] = 64,
    iters: Iters = None,
    lam: Lam = None,
    threads: Threads = None,
    rounds: Rounds = None,
    backward: Annotated[bool, option("Also time forward with backward.")] = True,
    quick: Annotated[bool, option("Two sizes, under two minutes.", "--quick")] = False,
    operators: Operators = False,
    causal: Causal = False,
    flows: Flows = False,
    long: Long = False,
    device: Device = "cpu",
    compile_table: CompileTable = False,
    random_calls: RandomCalls = 0,
    tune: Tune = False,
    out: Out = Path("bench-results"),
) -> None:
    """Check results against the reference, then time them relative to softmax attention.

    With peak memory and growth in n. The same command resumes an interrupted run.
    """
    from bistoch.lab.bench import Options, run_bench

    if random_calls and not compile_table:
        raise ValueError(
            f"bench: --random-calls {random_calls} compiles kernels and times nothing; add "
            "--compile-table, or leave it out"
        )
    if compile_table:
        from bistoch.lab.device import read_device
        from bistoch.lab.gpu.scan import run_scan
        from bistoch.lab.gpu.table import run_compile_table

        # it uses none, but a wrong name is better found before minutes of compilation
        read_device(device, "bench")
        out.mkdir(parents=True, exist_ok=True)
        rows = run_compile_table(out, Console())
        if random_calls:
            run_scan(random_calls, rows, out / "compile-scan.json", Console())
        return
    if tune:
        from bistoch.lab.device import read_device
        from bistoch.lab.gpu.tune import run_tuning

        out.mkdir(parents=True, exist_ok=True)
        run_tuning(out, Console(soft_wrap=True), read_device(device, "bench"), dim)
        return
    options = Options(
        n=tuple(n or ()), heads=heads, dim=dim, lam=lam, iters=iters, threads=threads,
        rounds=rounds, backward=backward, quick=quick, operators=operators, causal=causal,
        flows=flows, long=long, device=device,
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    run_bench(options, out, Console())
