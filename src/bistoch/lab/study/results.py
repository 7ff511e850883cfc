"""The results of a study over seeds: means, paired differences, claims and tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, NamedTuple

from bistoch.lab.report import Table, show
from bistoch.lab.stats import (
    Difference,
    Verdict,
    bootstrap_difference,
    difference,
    seeds_of,
    spread,
)
from bistoch.lab.store import Result

# a number of a result: a key, keys of nested results joined by dots, or a function
Metric = str | Callable[[Result], float] | Callable[[Result], list[float]]


class Column(NamedTuple):
    """A column of a table: mean and standard deviation over seeds of a number of every cell.

    `compared` adds a column with the paired difference to the baseline and its 95 % interval.
    """

    title: str
    metric: Metric
    form: str = ".3f"
    scale: float = 1.0
    compared: bool = False


class Row(NamedTuple):
    """The result of one cell with one seed."""

    name: str
    seed: int
    options: Mapping[str, Any]
    result: Result


@dataclass(frozen=True)
class Results:
    """All finished cells of a study, for its tables, checks and figure.

    >>> rows = [Row(name, seed, {"lam": lam}, {"loss": 1.0 - lam / 2 + seed / 10})
    ...         for seed in (0, 1) for name, lam in (("softmax", 0.0), ("sinkhorn", 1.0))]
    >>> results = Results(rows)
    >>> results.names, results.names_with(lam=1.0), results.values("sinkhorn", "loss")
    (['softmax', 'sinkhorn'], ['sinkhorn'], [0.5, 0.6])
    >>> results.claim("less loss", "sinkhorn", "softmax", "loss", larger=False).holds
    'yes'
    """

    rows: Sequence[Row]
    sizes: Any = None
    smoke: bool = False

    @property
    def names(self) -> list[str]:
        """All cells, in order."""
        return list(dict.fromkeys(row.name for row in self.rows))

    def names_with(self, **options: object) -> list[str]:
        """The cells that have these options."""
        return list(
            dict.fromkeys(
                row.name
                for row in self.rows
                if all(row.options.get(key) == value for key, value in options.items())
            )
        )

    def options(self, name: str) -> Mapping[str, Any]:
        """The options of a cell."""
        return next(row.options for row in self.rows if row.name == name)

    def by_seed(self, name: str) -> dict[int, Result]:
        """The results of a cell by seed, without those that diverged."""
        return {
            row.seed: row.result
            for row in self.rows
            if row.name == name and "diverged" not in row.result
        }

    def values(self, name: str, metric: Metric) -> list[Any]:
        """A number of a cell, one per seed that has it."""
        found = (_get(result, metric) for result in self.by_seed(name).values())
        return [value for value in found if value is not None]

    def mean(self, name: str, metric: Metric) -> float:
        """The mean of a number over seeds."""
        return mean(self.values(name, metric))

    def difference(
        self, ours: str, baseline: str, metric: Metric, *, grain: float = 0.0
    ) -> Difference | None:
        """A number of one cell less that of another, seed by seed; None if they share no seed.

        `grain` is the smallest step of a coarse score, see `bistoch.lab.stats.difference`. If the
        metric gives a list, one number per sample that both cells were given, differences are taken
        sample by sample, and the interval is that of the bootstrap.
        """
        us, them = self.by_seed(ours), self.by_seed(baseline)
        pairs = [
            (mine, theirs)
            for seed in us
            if seed in them
            if (mine := _get(us[seed], metric)) is not None
            if (theirs := _get(them[seed], metric)) is not None
        ]
        if not pairs:
            return None
        if isinstance(pairs[0][0], list):
            each = [a - b for pair in pairs for a, b in zip(*pair, strict=True)]
            return bootstrap_difference(each)
        return difference([a - b for a, b in pairs], grain=grain)

    def claim(
        self,
        text: str,
        ours: str,
        baseline: str,
        metric: Metric,
        *,
        larger: bool,
        grain: float = 0.0,
        unit: str = "",
        form: str = ".3f",
        scale: float = 1.0,
    ) -> Verdict:
        """Whether a number of one cell is larger, or smaller, than that of another.

        The verdict is yes or no only where the 95 % interval of the paired difference excludes
        zero; otherwise it is inconclusive.
        """
        found = self.difference(ours, baseline, metric, grain=grain)
        if found is None:
            return Verdict(text, "not measured", "inconclusive")
        count = len(self.by_seed(ours).keys() & self.by_seed(baseline).keys())
        measured = " ".join(filter(None, (found.text(form, scale), unit)))
        return Verdict(text, f"{measured}, {seeds_of(count)}", found.verdict(larger=larger))

    def table(
        self,
        columns: Sequence[Column],
        caption: str = "",
        *,
        names: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        baseline: str | Callable[[str], str] = "",
        more: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Table:
        """One line per cell: its columns over seeds, differences to a baseline, what is published.

        Args:
            columns: what is shown. Where cells have different numbers of seeds, these are shown.
            caption: what they mean.
            names: the cells; all by default.
            labels: titles and options that name a line; by default the name of the cell.
            baseline: the cell that others are compared with, or a function of a name.
            more: further columns by title, their texts by cell: published numbers for example.
        """
        shown = self.names if names is None else names
        counts = {name: str(len(self.by_seed(name))) for name in shown}
        more = ({"seeds": counts} if len(set(counts.values())) > 1 else {}) | dict(more or {})
        head = list(labels or ("operator",))
        to = "difference" if callable(baseline) else f"difference to {baseline}"
        for column in columns:
            head += [column.title, to] if column.compared else [column.title]
        lines = []
        for name in shown:
            options = self.options(name)
            line = [show(options[key]) for key in labels.values()] if labels else [name]
            base = baseline(name) if callable(baseline) else baseline
            for column in columns:
                values = self.values(name, column.metric)
                line.append(spread(values, column.scale, column.form) if values else "")
                if column.compared:
                    line.append("" if name == base else self._compare(name, base, column))
            lines.append([*line, *(texts.get(name, "") for texts in more.values())])
        return Table([*head, *more], lines, caption)

    def times_over(self, baseline: str, cell: str = "time") -> dict[str, str]:
        """Times over that of a baseline, from a cell whose result is that of `best_times`."""
        seconds = next(iter(self.by_seed(cell).values()))["seconds"]
        return {name: f"{took / seconds[baseline]:.2f}" for name, took in seconds.items()}

    def _compare(self, name: str, base: str, column: Column) -> str:
        found = self.difference(name, base, column.metric)
        return "" if found is None else found.text(column.form, column.scale)


def _get(result: Result, metric: Metric) -> Any:
    """A number of a result, or None if it has none."""
    if callable(metric):
        try:
            return metric(result)
        except KeyError:
            return None
    found: Any = result
    for key in metric.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found
