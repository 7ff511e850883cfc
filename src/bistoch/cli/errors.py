"""Errors of a command: one sentence on stderr and exit code 2."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer


@contextmanager
def user_errors() -> Iterator[None]:
    """Print an error of the user as one sentence and exit with code 2.

    Warnings are printed as sentences too, each of them once. It also serves as a decorator of a
    command: `@user_errors()`.
    """
    import torch

    from bistoch.functional import BackendUnavailableError
    from bistoch.lab.device import DeviceLostError

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
        DeviceLostError,
    ) as error:  # fmt: skip
        _exit(str(error))
    except torch.OutOfMemoryError as error:
        wanted = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
        _exit(
            f"the GPU has too little memory{f' for another {wanted[1]}' if wanted else ''}: ask "
            "for less at once, such as a smaller --batch-size, --n or --length, or choose "
            "--device cpu"
        )
    for sentence in dict.fromkeys(str(warning.message) for warning in caught):
        typer.echo(f"warning: {sentence}", err=True)


def _exit(sentence: str) -> NoReturn:
    typer.echo(f"bistoch: {sentence}", err=True)
    raise typer.Exit(2)
