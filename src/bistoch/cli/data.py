"""The commands about data: `bistoch data list`, `get` and `path`."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from bistoch.cli.errors import user_errors
from bistoch.cli.options import AsJson

if TYPE_CHECKING:
    from bistoch.lab.data import Entry

data = typer.Typer(
    help="Data sets: list them, download one, print the paths of its files.", no_args_is_help=True
)
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="See `bistoch data list`.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="See `bistoch data list`.")]


@data.command("list")
def list_data(
    as_json: AsJson = False,
) -> None:
    """List the data sets: what each is, its size and licence, and whether it is on this machine."""
    from bistoch.lab.data import DATASETS, folders

    rows = [_describe(entry) for entry in DATASETS.values()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return

    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("data set", "kind", "size", "found in", "licence"):
        table.add_column(head, no_wrap=True, justify="right" if head == "size" else "left")
    about = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        name = f"[bold]{row['name']}[/bold]"
        here = row["place"] or ("get" if row["url"] else "no")
        size = f"{row['bytes'] / 1e6:.1f} MB" if row["bytes"] else ""
        table.add_row(name, row["kind"], size, here, row["licence"])
        classes = f", {len(row['classes'])} classes" if row["classes"] else ""
        counts = " + ".join(str(count) for count in row["counts"].values())
        about.add_row(name, f"{row['about']} ({counts}{classes})")
    console = Console(highlight=False)
    console.print(table)
    console.print(about)
    console.print("\nfound in, searched in this order:")
    for place, folder in folders().items():
        console.print(f"  {place}: {folder}", soft_wrap=True, markup=False)
    console.print("  get: not on this machine; `bistoch data get NAME` downloads it")
    console.print("  no: not on this machine, and no download; put it in a folder, BISTOCH_DATA")


@data.command()
@user_errors()
def get(names: Names) -> None:
    """Download data sets from their official addresses into the cache, and check them."""
    from bistoch.lab.data import check_whole, entry_of, fetch, find

    for entry in [entry_of(name) for name in names]:
        found = find(entry)
        if found is None:
            paths = fetch(entry, Console(stderr=True))
        else:
            for file in found.form.files:
                check_whole(entry.name, file, found.paths[file.path])
            paths = list(found.paths.values())
            typer.echo(f"{entry.name} is here already ({found.place})", err=True)
        for path in paths:
            typer.echo(path)


@data.command()
@user_errors()
def path(name: Name) -> None:
    """Print the paths of the files of a data set, one per line."""
    from bistoch.lab.data import entry_of, find, missing

    entry = entry_of(name)
    if entry.make is not None:
        raise ValueError(f"{name} is made from a seed when it is loaded; it has no files")
    found = find(entry)
    if found is None:
        raise missing(entry)
    for where in found.paths.values():
        typer.echo(where)


def _describe(entry: "Entry") -> dict[str, Any]:
    from bistoch.lab.data import find

    found = find(entry)
    form = found.form if found else entry.official or (entry.forms or (None,))[0]
    files = form.files if form else ()
    return {
        "name": entry.name,
        "kind": entry.kind,
        "about": entry.about,
        "home": entry.home,
        "licence": entry.licence,
        "counts": dict(entry.counts),
        "classes": list(entry.classes),
        "place": "made" if entry.make else found.place if found else None,
        "paths": [str(path) for path in found.paths.values()] if found else [],
        "bytes": form.size if form else 0,
        "sha256": {file.path: file.sha256 for file in files},
        "url": [file.url for file in entry.official.files] if entry.official else [],
    }
