"""What a verb says when the user made a mistake: one sentence, and exit code 2."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn a mistake of the user into one sentence and exit code 2, a warning into one sentence."""
    from bistoch.functional import BackendUnavailableError

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    except BrokenPipeError:
        # who reads what is printed has read enough, as `head` does: nobody made a mistake
        raise
    except OSError as mistake:
        where = f" {mistake.filename}" if mistake.filename else ""
        _refuse(f"cannot read or write{where}: {mistake.strerror or mistake}")
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
