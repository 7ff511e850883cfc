"""Files that are whole or not there, and folders that one process writes to at a time."""

import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Put a file in place in one step.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "a", b"all")
    ...     [(file.name, file.read_bytes()) for file in Path(folder).iterdir()]
    [('a', b'all')]
    """
    part = new_part(path)
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as refused:
        # a full disk does not say which file it could not take
        raise OSError(refused.errno, refused.strerror or str(refused), str(path)) from refused
    finally:
        part.unlink(missing_ok=True)


def new_part(path: Path) -> Path:
    """A name beside a file to write it under first; what killed processes left there is removed.

    >>> new_part(Path("a")).name.startswith(f".a.{os.getpid()}.")
    True
    """
    import psutil  # type: ignore[import-untyped]

    for old in path.parent.glob(".*.part"):
        written_by = re.search(r"\.(\d{1,9})\.\w+\.part$", old.name)
        if written_by and not psutil.pid_exists(int(written_by[1])):
            old.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; the system opens it again if this one is killed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, held(Path(folder)):
    ...     try:
    ...         with held(Path(folder)):
    ...             pass
    ...     except ValueError as mistake:
    ...         print(str(mistake).removeprefix(folder))
     is in use by another process; wait until that has ended, or take another folder
    """
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(
            f"{folder} is in use by another process; wait until that has ended, or take another "
            "folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def digest(*facts: object) -> str:
    """A short name for a configuration.

    >>> digest("a", 1) == digest("a", 1), digest("a", 1) == digest("a", 2)
    (True, False)
    """
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:10]
