"""The command that looks for hubs in a search: `bistoch retrieval`."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from bistoch.cli.errors import user_errors
from bistoch.cli.options import Device, option

FILE = "vectors as .npy, .npz or .jsonl, or .txt with a text per line"
Queries = Annotated[Path, typer.Argument(help=f"Queries: {FILE}.")]
Documents = Annotated[Path, typer.Argument(help="Documents, in the same forms.")]
Bank = Annotated[
    Path | None,
    option(
        "Past queries from which the correction is computed.", default="the queries", dir_okay=False
    ),
]
Pairs = Annotated[
    str | None,
    option(
        "Right documents, for recall: 'same' if query i belongs to document i, or a file with a "
        "position per line."
    ),
]
Lam = Annotated[float, option("Strength, from 0 (no correction) to 1 (equal shares).")]
Eps = Annotated[str, option("Temperature in units of the scores, or auto (needs no labels).")]
EncoderName = Annotated[
    str | None, option("Encodes texts: a folder with a model of transformers, or its name.")
]
Cosine = Annotated[
    bool, option("Cosine similarity, or inner products without normalising.", "--cosine/--inner")
]
Out = Annotated[Path, option("Folder for the report and the correction.", file_okay=False)]


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
    device: Device = "cpu",
    out: Out = Path("retrieval-report"),
) -> None:
    """Find hubs (documents near to many queries) in a search, and write a correction."""
    from bistoch.lab.device import read_device
    from bistoch.lab.search import run_search

    options = {"bank": bank, "pairs": pairs, "lam": lam, "eps": eps, "encoder": encoder}
    options["device"] = None if device == "cpu" else device
    words = ["bistoch", "retrieval", str(queries), str(documents)]
    for name, value in options.items():
        words += [f"--{name}", str(value)] if value is not None else []
    run_search(
        queries, documents, bank=bank, pairs=pairs, lam=lam, eps=_eps(eps), encoder=encoder,
        cosine=cosine, device=read_device(device, "retrieval"), out=out,
        command=shlex.join(words if cosine else [*words, "--inner"]),
        console=Console(highlight=False),
    )  # fmt: skip


def _eps(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"retrieval: --eps must be auto or a number, not {text!r}") from None
