"""What is compared: the same model, data and protocol with several operators and seeds."""

import hashlib
import re
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from bistoch.functional import OPERATORS, parse_operator
from bistoch.lab.data import DATASETS
from bistoch.lab.files import digest
from bistoch.lab.train import Recipe, Setup, Task

DEFAULT_OPERATORS = ("softmax", "sinkhorn", "elastic(lam=0.5, learn='head')")


@dataclass(frozen=True)
class Comparison:
    """Operators on equal terms.

    Args:
        data, model: as for `bistoch.lab.train.Setup`.
        operators: texts of operators.
        seeds: every operator is trained once with each.
        recipe: the protocol of every run.
        rates: learning rates to choose from. Each operator is trained with all of them on the first
            seed, and goes on with the one whose held-out score is best. Empty: the recipe's.

    >>> Comparison("shapes", "set_transformer", ("softmax", "softmax"), (0,))
    Traceback (most recent call last):
    ...
    ValueError: compare: operators must differ, but softmax is there twice
    """

    data: str
    model: str
    operators: tuple[str, ...] = DEFAULT_OPERATORS
    seeds: tuple[int, ...] = (0, 1, 2)
    recipe: Recipe = Recipe()  # noqa: RUF009 (it is frozen)
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.operators:
            raise ValueError("compare: name at least one operator, see `bistoch list`")
        for name in ("operators", "seeds", "rates"):
            values = getattr(self, name)
            twice = next((x for x in values if values.count(x) > 1), None)
            if twice is not None:
                raise ValueError(f"compare: {name} must differ, but {twice} is there twice")
        if not self.seeds:
            raise ValueError("compare: at least one seed is needed, but there is none")
        read: dict[str, tuple[str, dict[str, Any]]] = {}
        for operator in self.operators:
            row, options = parse_operator(operator, OPERATORS)
            # a whole number and the same with a point are one: repr would tell them apart
            same = next((o for o, known in read.items() if known == (row.name, options)), None)
            if same is not None:
                raise ValueError(
                    f"compare: operators must differ, but {operator} is {same} in other words"
                )
            read[operator] = row.name, options

    @property
    def chooses(self) -> bool:
        """Whether something is chosen by a score, so that samples must be held out for it."""
        return len(self.rates) > 1 or self.recipe.patience is not None

    def setup(self, operator: str, seed: int, rate: float | None = None) -> Setup:
        """The run of an operator with a seed."""
        recipe = self.recipe if rate is None else replace(self.recipe, lr=rate)
        return Setup(self.data, self.model, operator, recipe, seed)


def cell_folder(out: Path, setup: Setup, task: Task) -> Path:
    """The folder of a run: readable, and another one for every other setup.

    >>> from bistoch.lab.train import open_task
    >>> setup = Setup("shapes", "set_transformer", "elastic(lam=0.5)", seed=3)
    >>> cell_folder(Path("out"), setup, open_task("shapes")).name[:-10]
    'elastic-lam-0.5-seed-3-'
    """
    counts = [task.count(split) for split in ("train", "valid", "test")]
    facts: tuple[object, ...] = asdict(setup), counts, task.facts.get("length")
    if setup.data not in DATASETS:
        # files of one's own may change under the same name
        facts += (_content(setup.data),)
    name = re.sub(r"[^a-z0-9.]+", "-", setup.operator.lower()).strip("-")
    return out / "runs" / f"{name}-seed-{setup.seed}-{digest(*facts)}"


def _content(data: str) -> str:
    """A name for what a file holds, or all files of a folder."""
    path = Path(data).expanduser()
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return _digest_files(
        path, tuple((file, file.stat().st_mtime_ns) for file in files if file.is_file())
    )


# every run of a comparison asks, and files may be large: they are read once, until they are touched
@lru_cache(maxsize=1)
def _digest_files(path: Path, stamped: tuple[tuple[Path, int], ...]) -> str:
    found = hashlib.sha256()
    for file, _ in stamped:
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        found.update(f"{file.relative_to(path)} {content}\n".encode())
    return found.hexdigest()
