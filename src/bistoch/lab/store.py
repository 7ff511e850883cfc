"""Results of finished runs: one JSON file per run, named by the configuration it depends on."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bistoch.lab.files import write_whole

Result = dict[str, Any]


class Run(NamedTuple):
    """One run of a store: a configuration, and its result once it is finished."""

    path: Path
    configuration: Any
    warn: Callable[[str], None]

    @property
    def folder(self) -> Path:
        """Where the run keeps files of its own, such as a checkpoint; made when it is used."""
        return self.path.with_suffix("")

    def read(self) -> Result | None:
        """The result, or None if the run is not finished; a damaged file counts as missing."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["configuration"] == self.configuration:
                return dict(content["result"])
            reason = "it holds another configuration"
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as damage:
            reason = f"{type(damage).__name__}: {damage}"
        self.warn(f"{self.path} is damaged and its run is repeated ({reason})")
        return None

    def write(self, result: Mapping[str, Any]) -> Result:
        """Keep a result, and return it as `read` will."""
        content = plain({"configuration": self.configuration, "result": result})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(content, indent=1, ensure_ascii=False).encode())
        return dict(content["result"])

    def once(self, make: Callable[[], Mapping[str, Any]]) -> Result:
        """The result, made now if the run is not finished."""
        known = self.read()
        return self.write(make()) if known is None else known


class Store:
    """A folder of results.

    Args:
        folder: where the files are.
        warn: is told, in a sentence, of every damaged file that is ignored.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Store(Path(folder)).run("softmax, seed 0", {"operator": "softmax", "seed": 0})
    ...     print(run.read(), run.once(lambda: {"loss": 0.5}), run.once(lambda: {"loss": 9.0}))
    ...     print(run.path.name[:-16])
    None {'loss': 0.5} {'loss': 0.5}
    softmax-seed-0
    """

    def __init__(self, folder: Path, warn: Callable[[str], None] = lambda sentence: None):
        self.folder, self.warn = folder, warn

    def run(self, name: str, configuration: object) -> Run:
        """The run of a configuration: all that its result depends on, as dataclasses or JSON.

        Args:
            name: begins the name of its file, for readers; it need not be unique.
            configuration: another one is another run.
        """
        facts = plain(configuration)
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10]
        readable = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")[:80]
        return Run(self.folder / f"{readable}-{digest}.json", facts, self.warn)


def plain(value: object) -> Any:
    """A value as JSON gives it back: dataclasses as dictionaries, tuples as lists.

    >>> plain({"sizes": (1, 2), "folder": Path("a")})
    {'sizes': [1, 2], 'folder': 'a'}
    """
    return json.loads(json.dumps(value, default=_convert))


def _convert(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be kept as JSON: {value!r}")
