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
COLUMNS = {"free": "free", "elastic": "pulled", "limit": "in the limit", "exact": "equal"}
# marks an operator whose plan has negative weights
SIGNED = "*"
# the parts of the table, from above
FAMILIES = {
    "balanced": "first part; rows and columns are weighed against each other",
    "structured": "second part; plans with a form of their own",
    "row-wise": "third part; every row for itself",
}


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

    # names and promises fit a terminal of 80 columns; only options may need a second line
    promises = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    heads = ("operator", "rows", "columns", "gradient", "causal", "order", "shape", "masks")
    for head in heads:
        promises.add_column(head, no_wrap=True)
    details = Table.grid(padding=(0, 2, 0, 0))
    for family in FAMILIES:
        members = [row for row in OPERATORS.values() if row.family == family]
        promises.add_section()
        for operator in members:
            promises.add_row(f"[bold]{operator.name}[/bold]", *_promises(operator))
            options = ", ".join(f"{name}={value!r}" for name, value in operator.options().items())
            details.add_row(f"[bold]{operator.name}[/bold]", f"({options})")
            by = " or ".join(operator.backends)
            by += ", without an n x m matrix" if operator.matrix_free else ""
            details.add_row("", f"{operator.source}; computed by {by}")
    console = Console(highlight=False)
    console.print(promises)
    for family, meaning in FAMILIES.items():
        console.print(f"{family}: {meaning}")
    console.print(f"{SIGNED} some weights are negative")
    console.print("\nOptions with their defaults, source and backends:\n")
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


def _promises(operator: "Operator") -> tuple[str, ...]:
    """What an operator promises, in words short enough for one line."""
    return (
        ("one" if operator.rows_exact else "free") + ("" if operator.nonnegative else SIGNED),
        COLUMNS[operator.columns],
        "none" if not operator.differentiable else "weight" if operator.static else "exact",
        "yes" if operator.causal else "no",
        "any" if operator.order_free else "fixed",
        "square" if operator.square else "any",
        operator.masks,
    )


def _describe(operator: "Operator") -> dict[str, Any]:
    return {
        "name": operator.name,
        "family": operator.family,
        "rows_exact": operator.rows_exact,
        "nonnegative": operator.nonnegative,
        "columns": operator.columns,
        "differentiable": operator.differentiable,
        "causal": operator.causal,
        "order_free": operator.order_free,
        "square": operator.square,
        "masks": operator.masks,
        "static": operator.static,
        "matrix_free": operator.matrix_free,
        "longest": operator.longest,
        "backends": list(operator.backends),
        "options": operator.options(),
        "source": operator.source,
    }
