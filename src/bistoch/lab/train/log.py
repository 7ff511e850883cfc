"""The numbers of a run while it goes: lines of JSON, and TensorBoard where it is installed."""

import json
import math
from pathlib import Path
from typing import Any

from bistoch.lab.files import write_whole

MISSING = 'no TensorBoard files: tensorboard is missing (pip install "bistoch[lab]")'


class Log:
    """A file of JSON lines, each with the step it belongs to, and the same for TensorBoard.

    Args:
        path: the file; lines after `step` in it are of a run that was killed, and are dropped.
        step: how many steps are done.
        tensorboard: whether to write files for TensorBoard beside it.

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
        self._board = _open_board(path.parent / "tensorboard", step) if tensorboard else None

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def write(self, step: int, numbers: dict[str, float]) -> None:
        """Take numbers in; a number that is not finite is null in JSON."""
        line = {name: x if math.isfinite(x) else None for name, x in numbers.items()}
        self._file.write(json.dumps({"step": step, **line}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, x in numbers.items():
                self._board.add_scalar(name, x, step)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; half a line at its end, left by a killed run, is not one."""
    if not path.exists():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def has_tensorboard() -> bool:
    """Whether files for TensorBoard can be written."""
    from importlib.util import find_spec

    return find_spec("tensorboard") is not None


def _open_board(folder: Path, step: int) -> Any:
    if not has_tensorboard():
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)
