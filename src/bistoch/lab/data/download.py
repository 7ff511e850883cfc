"""Download files from their official addresses: complete and checked, or not at all."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from bistoch import __version__
from bistoch.lab.data.entry import Entry, File
from bistoch.lab.data.kinds import DataError
from bistoch.lab.data.locations import cache_folder
from bistoch.lab.data.read_files import check_whole
from bistoch.lab.files import new_part

CHUNK = 1 << 16
TIMEOUT = 30.0
BY_HAND = "put the file into a folder and set BISTOCH_DATA to that folder"


def fetch(entry: Entry, console: Console | None = None) -> list[Path]:
    """Download the official files of a data set into the cache; returns their paths.

    A file that exists is checked and left alone. A new one appears under its name only when it is
    complete, so several processes may download at once.
    """
    form = entry.official
    if form is None:
        raise DataError(_not_official(entry))
    paths = []
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console or Console(stderr=True)) as progress:
        for file in form.files:
            path = cache_folder() / file.path
            if path.exists():
                check_whole(entry.name, file, path)
            else:
                task = progress.add_task(Path(file.path).name, total=file.size)
                download(entry.name, file, path, partial(progress.advance, task))
            paths.append(path)
    return paths


def download(name: str, file: File, path: Path, report: Callable[[int], None]) -> None:
    """Write one file under a temporary name, check it, and rename it."""
    with _disk_errors(name, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = new_part(path)
    try:
        # closing writes the rest of the buffer, so that a full disk may show only there
        with _disk_errors(name, path), part.open("xb") as stream:
            digest, size = _receive(name, file, path, stream, report)
        if size != file.size or digest != file.sha256:
            raise DataError(
                f"{name}: {file.url} sent {size} bytes with a sha256 that starts with "
                f"{digest[:12]}, expected {file.size} and {file.sha256[:12]}; nothing was kept; "
                "try again, and if it stays so, the file at that address has changed"
            )
        if path.exists():
            # another process was faster
            check_whole(name, file, path)
            return
        with _disk_errors(name, path):
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _receive(
    name: str, file: File, path: Path, stream: IO[bytes], report: Callable[[int], None]
) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with _network_errors(name, file, lambda: size):
        request = urllib.request.Request(
            file.url or "", headers={"User-Agent": f"bistoch/{__version__}"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            while chunk := answer.read(CHUNK):
                with _disk_errors(name, path):
                    stream.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                report(len(chunk))
                if size > file.size:
                    # never fill a disk with an answer that cannot be right
                    break
    if size < file.size:
        raise DataError(
            f"{name}: {file.url} broke off after {size} of {file.size} bytes; nothing was kept; "
            "try again"
        )
    with _disk_errors(name, path):
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest(), size


@contextmanager
def _disk_errors(name: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{name}: cannot write {path}: {error.strerror or error}; nothing was kept; free some "
            "space or set BISTOCH_CACHE to another folder"
        ) from error


@contextmanager
def _network_errors(name: str, file: File, received: Callable[[], int]) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as answer:
        with answer:
            raise DataError(
                f"{name}: {file.url} answered {answer.code} {answer.reason}; nothing was kept; try "
                f"again later, or {BY_HAND}"
            ) from answer
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"{name}: {file.url} cannot be reached or broke off after {received()} of {file.size} "
            f"bytes ({reason}); nothing was kept; try again, or {BY_HAND}"
        ) from error


def _not_official(entry: Entry) -> str:
    if entry.make is not None:
        return f"{entry.name} is made from a seed when it is loaded; there is nothing to download"
    files = entry.forms[0].files
    listed = " and ".join(f"{file.path} (sha256 {file.sha256})" for file in files)
    return (
        f"{entry.name} has no official file that can be read as it is: it is read from {listed}, "
        f"made from {entry.home}; put that into a folder and set BISTOCH_DATA to it, or load a "
        "copy of your own by its path"
    )
