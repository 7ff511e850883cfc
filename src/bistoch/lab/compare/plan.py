"""What is compared: the same model, data and recipe with several operators and seeds."""

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from bistoch.functional import OPERATORS, parse_operator
from bistoch.lab.data import DATASETS
from bistoch.lab.train import Recipe, Setup, Task

DEFAULT_OPERATORS = ("softmax", "sinkhorn", "elastic(lam=0.5, learn='head')")


@dataclass(frozen=True)
class Comparison:
    """Operators that are trained in the same way.

    Args:
        data, model: as for `bistoch.lab.train.Setup`.
        operators: texts of operators.
        seeds: every operator is trained once with each.
        recipe: of every run.
        lrs: learning rates to choose from. Each operator is trained with all of them on the first
            seed, and keeps the one with the best validation score. Empty: that of the recipe.

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
    lrs: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("operators", 1), ("seeds", 1), ("lrs", 0)):
            values = getattr(self, name)
            if len(values) < least:
                raise ValueError(f"compare: give at least one of {name}; there is none")
            twice = next((x for x in values if values.count(x) > 1), None)
            if twice is not None:
                raise ValueError(f"compare: {name} must differ, but {twice} is there twice")
        known: dict[str, tuple[str, dict[str, Any]]] = {}
        for text in self.operators:
            row, options = parse_operator(text, OPERATORS)
            # 1 and 1.0 are equal: texts would tell them apart
            same = next((o for o, other in known.items() if other == (row.name, options)), None)
            if same is not None:
                raise ValueError(
                    f"compare: operators must differ, but {text} is the same as {same}"
                )
            known[text] = row.name, options

    @property
    def needs_validation(self) -> bool:
        """Whether something is chosen by a score, so that samples must be held out for it."""
        return len(self.lrs) > 1 or self.recipe.patience is not None

    @property
    def run_count(self) -> int:
        """How many runs are trained; the chosen learning rate of the first seed is not repeated."""
        repeated = len(self.lrs) - 1 if self.lrs else 0
        return len(self.operators) * (len(self.seeds) + repeated)

    def setup(self, operator: str, seed: int, lr: float | None = None) -> Setup:
        """The run of an operator with a seed."""
        recipe = self.recipe if lr is None else replace(self.recipe, lr=lr)
        return Setup(self.data, self.model, operator, recipe, seed)


def configuration_of(setup: Setup, task: Task) -> dict[str, Any]:
    """All that the result of a run depends on."""
    samples = [task.count(split) for split in ("train", "valid", "test")]
    found = {"setup": setup, "samples": samples, "length": task.facts.get("length")}
    if "resize" in task.facts:
        found |= {"resize": task.facts["resize"], "image": task.sizes["image"]}
    if setup.data not in DATASETS:
        # a user's own files may change under the same name
        found["content"] = _content(setup.data)
    return found


def _content(data: str) -> str:
    """A checksum of a file, or of all files of a folder."""
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
