"""Errors of a command: one sentence on stderr and exit code 2."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer


@contextmanager
def user_errors() -> Iterator[None]:
    """Print an error of the user as one sentence and exit with code 2; warnings as sentences too.

    It also serves as a decorator of a command: `@user_errors()`.
    """
    from bistoch.functional import BackendUnavailableError

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    except BrokenPipeError:
        # the reader of the output has read enough, as `head` does: that is no error
        raise
    except OSError as error:
        file = f" {error.filename}" if error.filename else ""
        _exit(f"cannot read or write{file}: {error.strerror or error}")
    except (
        ValueError, TypeError, ImportError, NotImplementedError, BackendUnavailableError,
    ) as error:  # fmt: skip
        _exit(str(error))
    for warning in caught:
        typer.echo(f"warning: {warning.message}", err=True)


def _exit(sentence: str) -> NoReturn:
    typer.echo(f"bistoch: {sentence}", err=True)
    raise typer.Exit(2)
