"""Files that are whole or not there: what a killed run leaves behind is never half a file."""

import hashlib
import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Put a file in place in one step.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "a", b"all")
    ...     [(file.name, file.read_bytes()) for file in Path(folder).iterdir()]
    [('a', b'all')]
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as refused:
        # a full disk does not say which file it could not take
        raise OSError(refused.errno, refused.strerror, str(path)) from refused
    finally:
        part.unlink(missing_ok=True)


def digest(*facts: object) -> str:
    """A short name for a configuration.

    >>> digest("a", 1) == digest("a", 1), digest("a", 1) == digest("a", 2)
    (True, False)
    """
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:10]
