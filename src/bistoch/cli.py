"""The command line: it parses words of a terminal and hands them to the room that does the work.

Rooms are imported inside the verbs: each loads only what it needs.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

if TYPE_CHECKING:
    from bistoch.functional import Operator

app = typer.Typer(
    help="Attention whose columns are as accountable as its rows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

SHOWN = (
    "softmax",
    "elastic(lam=0.25)",
    "elastic(lam=0.5)",
    "elastic(lam=0.75)",
    "sinkhorn",
    "hard",
)
COLUMNS = {"free": "free", "elastic": "pulled", "limit": "equal in the limit", "exact": "equal"}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bistoch {version('bistoch')}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Attention whose columns are as accountable as its rows."""


@app.command("list")
def list_operators(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """List the operators: what each promises, who computes it, and its options."""
    from bistoch.functional import OPERATORS

    if as_json:
        rows = [_describe(operator) for operator in OPERATORS.values()]
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return

    from rich import box
    from rich.table import Table

    promises = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("operator", "rows", "columns", "gradient", "causal", "order-free"):
        promises.add_column(head, no_wrap=True)
    details = Table.grid(padding=(0, 2, 0, 0))
    for operator in OPERATORS.values():
        facts = (operator.differentiable, operator.causal, operator.order_free)
        promises.add_row(
            f"[bold]{operator.name}[/bold]",
            "one" if operator.rows_exact else "near one",
            COLUMNS[operator.columns],
            *("yes" if fact else "no" for fact in facts),
        )
        options = ", ".join(f"{name}={value!r}" for name, value in operator.options().items())
        details.add_row(f"[bold]{operator.name}[/bold]", f"({options})")
        details.add_row("", f"{operator.source}; computed by {' or '.join(operator.backends)}")
    console = Console(highlight=False)
    console.print(promises)
    console.print("Options with their defaults, source and backends:\n")
    console.print(details)


@app.command()
def show(
    operators: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATOR",
            help="Names with options, such as 'elastic(lam=0.5, iters=20)'. "
            f"Default: {' '.join(SHOWN)}",
            show_default=False,
        ),
    ] = None,
    size: Annotated[int, typer.Option(min=1, max=512, help="Number of tokens.")] = 10,
    sink: Annotated[
        float, typer.Option(help="How much more every query likes one planted key; 0 plants none.")
    ] = 3.0,
    eps: Annotated[
        float | None, typer.Option(help="Temperature of operators whose text does not set it.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the tokens.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Also write a picture: .png, .pdf or .svg.", dir_okay=False)
    ] = None,
) -> None:
    """Draw plans side by side with their row sums and column sums."""
    import torch

    from bistoch.analysis import TerminalPlans, draw_plans, planted_tokens

    generator = torch.Generator().manual_seed(seed)
    with _one_sentence():
        query, key = planted_tokens(size, sink=sink, generator=generator)
        plans = {text: _plan(text, query, key, eps) for text in operators or SHOWN}
    console = Console()
    planted = f"key {size // 3 + 1} planted as a sink (+{sink:g})" if sink else "no sink planted"
    console.print(f"{size} queries and {size} keys, {planted}\n", style="dim", highlight=False)
    console.print(TerminalPlans(plans))
    if out is not None:
        with _one_sentence():
            draw_plans(plans).savefig(out, dpi=150)
        console.print(f"\nwrote {out}", highlight=False, soft_wrap=True)


def _plan(text: str, query: Any, key: Any, eps: float | None) -> Any:
    from bistoch.functional import OPERATORS, check_options, parse_operator

    operator, options = parse_operator(text, OPERATORS)
    known = operator.options()
    check_options(operator.name, options, known)
    if eps is not None and "eps" in known:
        options = {"eps": eps} | options
    # a plan takes the options of its attention, and no others
    return operator.plan(query, key, **options)


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn a mistake of the user into one sentence and exit code 2, a warning into one sentence."""
    from bistoch.functional import BackendUnavailableError

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    except OSError as mistake:
        _refuse(f"cannot write {mistake.filename}: {mistake.strerror}")
    except (
        ValueError,
        TypeError,
        ImportError,
        NotImplementedError,
        BackendUnavailableError,
    ) as mistake:
        _refuse(str(mistake))
    for warning in caught:
        typer.echo(f"warning: {warning.message}", err=True)


def _refuse(sentence: str) -> NoReturn:
    typer.echo(f"bistoch: {sentence}", err=True)
    raise typer.Exit(2)


def _describe(operator: "Operator") -> dict[str, Any]:
    return {
        "name": operator.name,
        "rows_exact": operator.rows_exact,
        "columns": operator.columns,
        "differentiable": operator.differentiable,
        "causal": operator.causal,
        "order_free": operator.order_free,
        "backends": list(operator.backends),
        "options": operator.options(),
        "source": operator.source,
    }


@app.command()
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
        int | None, typer.Option(help="Threads for everybody.", show_default="those of torch")
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
    out: Annotated[Path, typer.Option(help="Folder for JSON and picture.", file_okay=False)] = Path(
        "bench-results"
    ),
) -> None:
    """Prove, then time: balanced attention over softmax attention, with memory and growth.

    A stopped run goes on where it was when the same words are given again.
    """
    from bistoch.lab.bench import Options, run_bench

    with _one_sentence():
        options = Options(
            n=tuple(n or ()), heads=heads, dim=dim, lam=lam, iters=iters, threads=threads,
            rounds=rounds, backward=backward, quick=quick, operators=operators,
        )  # fmt: skip
        out.mkdir(parents=True, exist_ok=True)
    run_bench(options, out, Console())
