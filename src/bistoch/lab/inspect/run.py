"""Inspect a model: load, measure, swap heads, report."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bistoch.integrations import huggingface
from bistoch.integrations.huggingface.layers import count_heads
from bistoch.lab.inspect.load import Subject, load_subject
from bistoch.lab.inspect.measure import Measured, measure
from bistoch.lab.inspect.report import Head, Inspection, write_report
from bistoch.lab.inspect.swap import swap_all, swap_heads, swapped_plan
from bistoch.lab.progress import progress

# heads whose plans are drawn if the user names none, and texts in the command of the report
SHOWN, TEXTS = 3, 3


def run_inspect(
    name: str,
    *,
    texts: Sequence[str] = (),
    images: Sequence[Path] = (),
    lams: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 1.0),
    heads: Sequence[Head] = (),
    each_head: bool = True,
    out: Path,
    console: Console,
) -> Path:
    """Analyse a model and write `report.html` and `report.json`; returns the report.

    Args:
        name: a folder or a name on the hub.
        texts, images: the inputs of the model.
        lams: elasticities to swap into all heads at once.
        heads: layers and heads whose plans are drawn; by default those with the largest key load.
        each_head: also swap every head alone, at the largest elasticity.
        out: a folder for the report.
        console: where the summary is printed.
    """
    for lam in lams:
        if not 0 <= lam <= 1:
            raise ValueError(f"inspect: lam must be in [0, 1]; but it is {lam}")
    with console.status("loading the model"):
        subject = load_subject(name, texts, images)
    with console.status("measuring its heads"):
        measured = measure(subject)
    shown = _choose(measured, heads)
    command = _command(name, texts, images, lams, heads, each_head)
    found = Inspection(subject, measured, shown, command, not_swapped=_why_no_swap(subject))
    if found.not_swapped is None and lams:
        found = _swap(found, lams, each_head, console)
    return write_report(found, out, console)


def _swap(
    found: Inspection, lams: Sequence[float], each_head: bool, console: Console
) -> Inspection:
    subject = found.subject
    layers = huggingface.attention_layers(subject.model)
    counts = [count_heads(name, layer) for name, layer in layers.items()]
    total = len(lams) + (sum(counts) if each_head else 0)
    done = 0
    with progress(console, 1) as bars:
        bars.start("swapping heads")

        def step() -> None:
            nonlocal done
            done += 1
            bars.step(done, total, f"{done} of {total}")

        effects = swap_all(subject, sorted(lams), step)
        each = swap_heads(subject, max(lams), counts, step) if each_head else None
    balanced = {head: swapped_plan(subject, *head, max(lams)) for head in found.shown}
    return found._replace(effects=effects, each=each, balanced=balanced)


def _command(
    name: str,
    texts: Sequence[str],
    images: Sequence[Path],
    lams: Sequence[float],
    heads: Sequence[Head],
    each_head: bool,
) -> str:
    """The command that makes the report again; of many texts only the first are in it."""
    words = ["bistoch", "inspect", name]
    options: list[tuple[str, Sequence[object]]] = [
        ("--text", texts[:TEXTS]), ("--images", images), ("--lam", [f"{lam:g}" for lam in lams]),
        ("--head", [f"{layer}.{head}" for layer, head in heads]),
    ]  # fmt: skip
    words += [
        str(word) for option, values in options for value in values for word in (option, value)
    ]
    more = "" if len(texts) <= TEXTS else f"   # and {len(texts) - TEXTS} texts more"
    return shlex.join([*words, *([] if each_head else ["--no-each-head"])]) + more


def _why_no_swap(subject: Subject) -> str | None:
    """A sentence if nothing can be swapped into the model."""
    if huggingface.converted_layers(subject.model):
        return (
            "This model is converted already: its own operators are shown, and none is swapped in."
        )
    try:
        huggingface.attention_layers(subject.model)
    except NotImplementedError as reason:
        return f"Nothing was swapped in: {reason}."
    return None


def _choose(measured: Measured, heads: Sequence[Head]) -> list[Head]:
    layers, width = measured.peak.shape
    for layer, head in heads:
        if not (0 <= layer < layers and 0 <= head < width):
            raise ValueError(
                f"inspect: there is no head {layer}.{head}; layers go from 0 to {layers - 1}, "
                f"heads from 0 to {width - 1}"
            )
    largest = measured.peak.flatten().argsort(descending=True)[:SHOWN].tolist()
    return list(heads) or [divmod(i, width) for i in largest]
