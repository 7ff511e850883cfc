"""The command that looks for hubs in a search: `bistoch retrieval`."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from bistoch.cli.errors import user_errors
from bistoch.cli.options import option

FILE = "vectors as .npy, .npz or .jsonl, or .txt with a text per line"
Queries = Annotated[Path, typer.Argument(help=f"Queries: {FILE}.")]
Documents = Annotated[Path, typer.Argument(help="Documents, in the same forms.")]
Bank = Annotated[
    Path | None, option("Past queries to learn from.", default="the queries", dir_okay=False)
]
Pairs = Annotated[
    str | None,
    option("'same' if query i looks for document i, or a file: positions, a line per query."),
]
Lam = Annotated[float, option("Elasticity, from 0 (no correction) to 1.")]
Eps = Annotated[str, option("Temperature in units of the scores, or auto.")]
EncoderName = Annotated[
    str | None, option("For texts: a folder with a model of transformers, or its name on the hub.")
]
Cosine = Annotated[
    bool, option("Compare directions, or inner products as they are.", "--cosine/--inner")
]
Out = Annotated[Path, option("Folder for page and correction.", file_okay=False)]


@user_errors()
def retrieval(
    queries: Queries,
    documents: Documents,
    bank: Bank = None,
    pairs: Pairs = None,
    lam: Lam = 0.9,
    eps: Eps = "auto",
    encoder: EncoderName = None,
    cosine: Cosine = True,
    out: Out = Path("retrieval-report"),
) -> None:
    """Report on the hubs of a search, and write the correction that takes them away."""
    from bistoch.lab.search import run_search

    options = {"bank": bank, "pairs": pairs, "lam": lam, "eps": eps, "encoder": encoder}
    words = ["bistoch", "retrieval", str(queries), str(documents)]
    for name, value in options.items():
        words += [f"--{name}", str(value)] if value is not None else []
    run_search(
        queries, documents, bank=bank, pairs=pairs, lam=lam, eps=_eps(eps), encoder=encoder,
        cosine=cosine, out=out, command=shlex.join(words if cosine else [*words, "--inner"]),
        console=Console(highlight=False),
    )  # fmt: skip


def _eps(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"retrieval: --eps must be auto or a number, not {text!r}") from None
