"""The verbs that show the operators: `bistoch list` and `bistoch show`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from bistoch.cli.mistakes import one_sentence

if TYPE_CHECKING:
    from bistoch.functional import Operator

SHOWN = (
    "softmax",
    "elastic(lam=0.25)",
    "elastic(lam=0.5)",
    "elastic(lam=0.75)",
    "sinkhorn",
    "hard",
)
COLUMNS = {"free": "free", "elastic": "pulled", "limit": "equal in the limit", "exact": "equal"}


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
    for head in (
        "operator",
        "rows",
        "columns",
        "gradient",
        "causal",
        "order-free",
        "n = m",
        "masks",
    ):
        promises.add_column(head, no_wrap=True)
    details = Table.grid(padding=(0, 2, 0, 0))
    for operator in OPERATORS.values():
        facts = (
            operator.differentiable, operator.causal, operator.order_free, operator.square,
        )  # fmt: skip
        promises.add_row(
            f"[bold]{operator.name}[/bold]",
            "one" if operator.rows_exact else "near one",
            COLUMNS[operator.columns],
            *("yes" if fact else "no" for fact in facts),
            operator.masks,
        )
        options = ", ".join(f"{name}={value!r}" for name, value in operator.options().items())
        details.add_row(f"[bold]{operator.name}[/bold]", f"({options})")
        details.add_row("", f"{operator.source}; computed by {' or '.join(operator.backends)}")
    console = Console(highlight=False)
    console.print(promises)
    console.print("Options with their defaults, source and backends:\n")
    console.print(details)


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
    with one_sentence():
        query, key = planted_tokens(size, sink=sink, generator=generator)
        plans = {text: _plan(text, query, key, eps) for text in operators or SHOWN}
    console = Console()
    planted = f"key {size // 3 + 1} planted as a sink (+{sink:g})" if sink else "no sink planted"
    console.print(f"{size} queries and {size} keys, {planted}\n", style="dim", highlight=False)
    console.print(TerminalPlans(plans))
    if out is not None:
        with one_sentence():
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


def _describe(operator: "Operator") -> dict[str, Any]:
    return {
        "name": operator.name,
        "rows_exact": operator.rows_exact,
        "nonnegative": operator.nonnegative,
        "columns": operator.columns,
        "differentiable": operator.differentiable,
        "causal": operator.causal,
        "order_free": operator.order_free,
        "square": operator.square,
        "masks": operator.masks,
        "backends": list(operator.backends),
        "options": operator.options(),
        "source": operator.source,
    }
