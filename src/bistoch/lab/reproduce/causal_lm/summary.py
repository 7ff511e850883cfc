"""The numbers of the study: differences seed by seed, the tables, and the verdicts."""

from collections.abc import Callable
from statistics import mean
from typing import Any

from bistoch.lab.compare.difference import Difference
from bistoch.lab.compare.summary import spread
from bistoch.lab.reproduce.study import Verdict

Found = dict[str, Any]
Get = Callable[[dict[str, Any]], float]
LOOKS = {
    "sink_rate": ("sink rate", 2), "first": ("first token", 3), "overload": ("overload", 1),
    "early": ("first half", 1), "deviation": ("deviation", 2), "kurtosis": ("kurtosis", 1),
}  # fmt: skip


def rows_of(found: Found, name: str) -> dict[int, dict[str, Any]]:
    """The runs of a line by seed."""
    return {row["seed"]: row for row in found["rows"] if row["name"] == name}


def lines_of(found: Found) -> list[str]:
    """The names of all lines, in the order of the table."""
    return list(dict.fromkeys(row["name"] for row in found["rows"]))


def paired(found: Found, name: str, other: str, get: Get) -> Difference | None:
    """One line less another, over the seeds that both have; None without any."""
    ours, theirs = rows_of(found, name), rows_of(found, other)
    try:
        each = tuple(get(ours[s]) - get(theirs[s]) for s in sorted(ours.keys() & theirs.keys()))
    except KeyError:
        return None
    return Difference(each) if each else None


def bits_at(length: int) -> Get:
    """The bits per character in windows of a length."""
    return lambda row: row["bits"][str(length)]


def _look_at(length: int, key: str) -> Get:
    return lambda row: row["attention"][str(length)][key]


def base_of(name: str) -> str:
    """The line of softmax that a line is compared with: that with the same places.

    >>> base_of("learned places: lam 1"), base_of("lam 1")
    ('learned places: softmax', 'softmax')
    """
    head, colon, _ = name.partition(": ")
    return f"{head}: softmax" if colon and head == "learned places" else "softmax"


def score_table(found: Found) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per operator: bits at both lengths, and what they differ from softmax by."""
    lengths, seconds = found["plan"]["tested"], found["time"]["seconds"]
    head = ["operator", "seeds"]
    for length in lengths:
        head += [f"bits at {length}", "less softmax"]
    lines = []
    for name in lines_of(found):
        rows = rows_of(found, name)
        line = [name, str(len(rows))]
        for length in lengths:
            known = [r["bits"][str(length)] for r in rows.values() if str(length) in r["bits"]]
            less = paired(found, name, base_of(name), bits_at(length))
            is_base = name == base_of(name) or less is None
            line += [spread(known, digits=3) if known else "", "" if is_base else str(less)]
        lines.append((*line, f"{seconds[name] / seconds['softmax']:.2f}"))
    return (*head, "step, over softmax"), lines


def look_table(found: Found, length: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per operator: what attention does in windows of a length, means over seeds."""
    lines = []
    for name in lines_of(found):
        looks = [row["attention"].get(str(length)) for row in rows_of(found, name).values()]
        seen = [look for look in looks if look is not None]
        if seen:
            values = (
                f"{mean(look[key] for look in seen):.{digits}f}"
                for key, (_, digits) in LOOKS.items()
            )
            lines.append((name, *values))
    return ("operator", *(title for title, _ in LOOKS.values())), lines


def oracle_table(found: Found) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What balance would do in the heads of the model with softmax, beside the exact oracle."""
    keys = {name: title for name, title in LOOKS.items() if name != "kurtosis"}
    lines: list[tuple[str, ...]] = []
    for name, row in found["oracle"].items():
        values = [f"{row[key]:.{digits}f}" for key, (_, digits) in keys.items()]
        lines.append((name, *values, f"{row['far']:.2f}"))
    return ("update", *(title for title, _ in keys.values()), "to the oracle"), lines


def lam_table(found: Found) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What every head learned, by seed and layer."""
    length, lines = str(found["plan"]["tested"][0]), list[tuple[str, ...]]()
    for row in found["rows"]:
        for layer, lams in row["attention"][length]["lam"].items():
            where = layer.removesuffix(".attention.operator")
            heads = "  ".join(f"{lam:.2f}" for lam in lams)
            lines.append((row["name"], str(row["seed"]), where, heads))
    return ("operator", "seed", "layer", "lam of every head"), lines


def judge(found: Found) -> list[Verdict]:
    """What was asked, beside what was measured; a difference counts beyond its 95 % interval."""
    short, long = found["plan"]["tested"]
    asked: list[tuple[str, str, str, Get, str]] = []
    for name in ("lam 0.25", "lam 0.5", "lam 1", "lam learned", "sink logit"):
        asked.append((f"{name}: fewer bits than softmax", name, "softmax", bits_at(short), "bits"))
    for name in ("lam 1", "lam learned"):
        claim = f"{name}: fewer bits than softmax on texts of {long}, trained on {short}"
        asked.append((claim, name, "softmax", bits_at(long), "bits"))
    for name in ("lam 1", "streamed ratio"):
        ours, base = f"learned places: {name}", "learned places: softmax"
        asked.append((f"{ours}: fewer bits than softmax", ours, base, bits_at(short), "bits"))
    for ours, head in (("lam 1", "control"), ("learned places: lam 1", "learned places")):
        for bias in ("bias of the distance", "mass of another text"):
            claim = f"{ours}: fewer bits than with the {bias}"
            asked.append((claim, ours, f"{head}: {bias}", bits_at(short), "bits"))
        claim, base = f"{ours}: columns more even than those of softmax", base_of(ours)
        asked.append((claim, ours, base, _look_at(short, "deviation"), "deviation"))
    verdicts = []
    for claim, ours, other, get, words in asked:
        less = paired(found, ours, other, get)
        if less is not None:
            seeds = "1 seed" if len(less.each) == 1 else f"{len(less.each)} seeds"
            verdicts.append(Verdict(claim, f"{less} {words}, {seeds}", less.judge()))
    return verdicts
