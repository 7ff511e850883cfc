"""The metrics of a run while it trains: lines of JSON, and TensorBoard where it is installed."""

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bistoch.lab.files import write_whole

NO_TENSORBOARD = 'no TensorBoard files: tensorboard is missing (pip install "bistoch[lab]")'


class Log:
    """A file of JSON lines, each with its step, and the same for TensorBoard.

    Lines after `step`, the number of steps that are done, belong to a killed run and are dropped.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with Log(folder / "metrics.jsonl", step=0) as log:
    ...     log.write(1, {"loss": 2.5})
    ...     log.write(2, {"loss": 2.0})
    >>> with Log(folder / "metrics.jsonl", step=1) as log:
    ...     log.write(2, {"loss": 2.0})
    >>> read_log(folder / "metrics.jsonl")
    [{'step': 1, 'loss': 2.5}, {'step': 2, 'loss': 2.0}]
    """

    def __init__(self, path: Path, step: int, *, tensorboard: bool = False):
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read_log(path) if line["step"] <= step]
        write_whole(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._file = path.open("a", encoding="utf-8")
        self._tensorboard: Any = None
        if tensorboard and has_tensorboard():
            from torch.utils.tensorboard import SummaryWriter

            folder = str(path.parent / "tensorboard")
            self._tensorboard = SummaryWriter(folder, purge_step=step + 1 if step else None)

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Log the metrics of a step; a number that is not finite is null in JSON."""
        line = {name: x if math.isfinite(x) else None for name, x in metrics.items()}
        self._file.write(json.dumps({"step": step, **line}) + "\n")
        self._file.flush()
        if self._tensorboard is not None:
            for name, x in metrics.items():
                self._tensorboard.add_scalar(name, x, step)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, up to a line that a killed run left incomplete."""
    lines: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return lines


def has_tensorboard() -> bool:
    """Whether files for TensorBoard can be written."""
    return find_spec("tensorboard") is not None
