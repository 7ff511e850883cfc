"""The commands that show the operators: `bistoch list` and `bistoch show`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from bistoch.cli.errors import user_errors
from bistoch.cli.options import AsJson, Device, option

if TYPE_CHECKING:
    from bistoch.functional import Operator

SHOWN = (
    "softmax", "elastic(lam=0.25)", "elastic(lam=0.5)", "elastic(lam=0.75)", "sinkhorn", "hard",
)  # fmt: skip
COLUMNS = {
    "free": "free", "elastic": "elastic", "streamed": "causal", "limit": "limit", "exact": "exact",
}  # fmt: skip
FAMILIES = {
    "balanced": "first section: column sums are controlled by the scores of all rows",
    "structured": "second section: plans of a special structure, such as thin factors",
    "row-wise": "third section: every row is computed alone",
}
LEGEND = {
    "rows": "one: every row sums to one; free: rows may sum to less (* some weights are negative)",
    "columns": "free: not controlled; elastic: pulled towards equal sums, by lam; causal: pulled "
    "towards the sums of uniform causal attention; limit: equal after many iterations; exact: "
    "always equal",
    "gradient": "exact: of query and key; weight: of a learned matrix only; none: only of value",
    "causal": "yes: no row depends on later rows, as a language model needs",
    "order": "any: permuting the tokens permutes the result; fixed: positions matter",
    "shape": "square: as many queries as keys; any: any numbers of both",
    "masks": "any: pairs and padding; keys: one mask for all queries; padding: whole tokens; none",
}
# fields of an operator in the JSON, besides its options
FIELDS = (
    "name", "family", "rows_exact", "nonnegative", "columns", "differentiable", "causal",
    "order_free", "square", "masks", "static", "matrix_free", "longest", "backends", "source",
)  # fmt: skip


def list_operators(as_json: AsJson = False) -> None:
    """List the operators: their properties, options, sources and backends."""
    from bistoch.functional import OPERATORS

    if as_json:
        rows = [
            {name: getattr(row, name) for name in FIELDS} | {"options": row.options()}
            for row in OPERATORS.values()
        ]
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return

    from rich import box
    from rich.table import Table

    # names and properties fit a terminal of 80 columns; only options may need a second line
    properties = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("operator", *LEGEND):
        properties.add_column(name, no_wrap=True)
    details = Table.grid(padding=(0, 2, 0, 0))
    for family in FAMILIES:
        properties.add_section()
        for operator in (row for row in OPERATORS.values() if row.family == family):
            properties.add_row(f"[bold]{operator.name}[/bold]", *_properties(operator))
            options = ", ".join(f"{name}={value!r}" for name, value in operator.options().items())
            details.add_row(f"[bold]{operator.name}[/bold]", f"({options})")
            backends = ", ".join(operator.backends)
            memory = "; no n x m matrix" if operator.matrix_free else ""
            details.add_row("", f"{operator.source}; backends: {backends}{memory}")
    console = Console(highlight=False)
    console.print(properties)
    legend = Table.grid(padding=(0, 2, 0, 0))
    for name, meaning in (FAMILIES | LEGEND).items():
        legend.add_row(f"[bold]{name}[/bold]", meaning)
    console.print(legend)
    console.print("\nOptions with their defaults, sources and backends:\n")
    console.print(details)


Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OPERATOR", show_default=False,
        help=f"Such as 'elastic(lam=0.5, iters=20)'. Default: {' '.join(SHOWN)}",
    ),
]  # fmt: skip
Out = Annotated[Path | None, option("Also write a figure: .png, .pdf or .svg.", dir_okay=False)]


@user_errors()
def show(
    operators: Texts = None,
    size: Annotated[int, option("Number of tokens.", min=1, max=512)] = 10,
    sink: Annotated[float, option("Score that every query adds to one key; 0: no sink.")] = 3.0,
    eps: Annotated[float | None, option("Temperature, where the operator does not set it.")] = None,
    seed: Annotated[int, option("Seed of the tokens.", min=0, max=2**31 - 1)] = 0,
    device: Device = "cpu",
    out: Out = None,
) -> None:
    """Draw plans side by side with their row sums and column sums."""
    import torch

    from bistoch.analysis import TerminalPlans, draw_plans, planted_tokens
    from bistoch.lab.device import read_device

    generator = torch.Generator().manual_seed(seed)
    where = read_device(device, "show")
    tokens = planted_tokens(size, sink=sink, generator=generator)
    query, key = (x.to(where) for x in tokens)
    plans = {text: _plan(text, query, key, eps).cpu() for text in operators or SHOWN}
    console = Console()
    planted = f"key {size // 3 + 1} is a sink (+{sink:g})" if sink else "no sink"
    console.print(f"{size} queries and {size} keys, {planted}\n", style="dim", highlight=False)
    console.print(TerminalPlans(plans))
    if out is not None:
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


def _properties(operator: "Operator") -> tuple[str, ...]:
    """The properties of an operator, in the order of the legend."""
    return (
        ("one" if operator.rows_exact else "free") + ("" if operator.nonnegative else "*"),
        COLUMNS[operator.columns],
        "none" if not operator.differentiable else "weight" if operator.static else "exact",
        "yes" if operator.causal else "no",
        "any" if operator.order_free else "fixed",
        "square" if operator.square else "any",
        operator.masks,
    )
