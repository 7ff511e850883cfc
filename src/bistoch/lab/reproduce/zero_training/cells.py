"""Answers on disk, one file for each question, so that a killed run goes on where it was."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bistoch.lab.files import write_whole


class Cells:
    """A folder of answers to questions about one configuration.

    Args:
        folder: where the files are; it is made if needed.
        configuration: what an answer depends on; another one finds none of these answers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = Cells(Path(folder), {"seed": 0}).ask("sum", lambda: 3)
    ...     again = Cells(Path(folder), {"seed": 0}).ask("sum", lambda: 4)
    ...     other = Cells(Path(folder), {"seed": 1}).ask("sum", lambda: 5)
    >>> first, again, other
    (3, 3, 5)
    """

    def __init__(self, folder: Path, configuration: dict[str, Any]) -> None:
        words = json.dumps(configuration, sort_keys=True).encode()
        self.folder = folder
        self.digest = hashlib.sha256(words).hexdigest()[:10]
        folder.mkdir(parents=True, exist_ok=True)

    def ask(self, question: str, answer: Callable[[], Any]) -> Any:
        """The answer on disk, or else a new one, which is then on disk."""
        path = self.folder / f"{question.replace(' ', '-')}.{self.digest}.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            found = answer()
            write_whole(path, json.dumps(found).encode())
            return found
