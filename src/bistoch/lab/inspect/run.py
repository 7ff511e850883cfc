"""Inspect a model: load, measure, swap heads, report."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from bistoch.analysis import attention_influence, balanced_layers
from bistoch.integrations import huggingface
from bistoch.integrations.huggingface.layers import count_heads
from bistoch.lab.device import CPU
from bistoch.lab.inspect import own
from bistoch.lab.inspect.load import load_subject
from bistoch.lab.inspect.measure import Measured, measure
from bistoch.lab.inspect.overloaded import Overloaded
from bistoch.lab.inspect.report import Inspection, write_report
from bistoch.lab.inspect.subject import Subject
from bistoch.lab.inspect.swap import plan_of, swap_all, swap_heads
from bistoch.lab.progress import progress

Head = tuple[int, int]
# heads whose plans are drawn if the user names none, and texts in the command of the report
SHOWN, TEXTS = 3, 3
# overloaded heads among which one is looked for that hides a diagonal
CANDIDATES = 24


def run_inspect(
    name: str,
    *,
    texts: Sequence[str] = (),
    images: Sequence[Path] = (),
    lams: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 1.0),
    heads: Sequence[Head] = (),
    each_head: bool = True,
    device: torch.device = CPU,
    out: Path,
    console: Console,
) -> Path:
    """Analyse a model and write `report.html` and `report.json`; returns the report.

    Args:
        name: a folder, a name on the hub, or a run of `bistoch train`.
        texts, images: the inputs of the model; a run may do without.
        lams: elasticities to swap into all heads at once.
        heads: layers and heads whose plans are drawn after that with the largest key load; by
            default the next ones.
        each_head: also swap every head alone, at the largest elasticity.
        device: where the model runs.
        out: a folder for the report.
        console: where the summary is printed.
    """
    for given in lams:
        if not 0 <= given <= 1:
            raise ValueError(f"inspect: lam must be in [0, 1]; but it is {given}")
    with console.status("loading the model"):
        subject = load_subject(name, texts, images, device)
    not_swapped, total = _why_no_swap(subject), len(subject.samples)
    counts = [] if not_swapped is not None else _count_heads(subject)
    swaps = (len(lams) + (sum(counts) if each_head else 0)) if counts and lams else 0
    with progress(console, 1 + bool(swaps)) as shown:
        shown.start("measuring heads")
        measured = measure(subject, lambda done: shown.step(done, total, f"{done} of {total}"))
        chosen = _choose(measured, heads)
        shown.finish("heads measured")
        command = _command(name, texts, images, lams, heads, each_head, device)
        args, options = _inputs(subject)
        found = Inspection(
            subject, measured, command, not_swapped=not_swapped,
            influence=attention_influence(subject.model, *args, **options),
            balanced=balanced_layers(subject.model, *args, **options),
        )  # fmt: skip
        if swaps:
            shown.start("swapping heads")
            done = 0

            def step() -> None:
                nonlocal done
                done += 1
                shown.step(done, swaps, f"{done} of {swaps}")

            effects = swap_all(subject, sorted(lams), step)
            each = swap_heads(subject, max(lams), counts, step) if each_head else None
            shown.finish("heads swapped")
            found = found._replace(effects=effects, each=each)
            if subject.score is not None:
                found = found._replace(score=subject.score())
    lam = max(lams) if swaps else None
    looked = [_look(subject, measured, head, lam) for head in chosen]
    if lam is not None and not heads:
        looked = _with_revealed(looked, subject, measured, lam)
    return write_report(found._replace(heads=looked), out, console)


def _inputs(subject: Subject) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """What the model is called with on its first batch."""
    batch = subject.batches[0]
    return ((batch["inputs"],), {}) if subject.own else ((), batch)


def _with_revealed(
    looked: list[Overloaded], subject: Subject, measured: Measured, lam: float
) -> list[Overloaded]:
    """The overloaded head in which balance makes a diagonal clearest, if any, as the second."""
    peaks = measured.peak.nan_to_num(0).flatten()
    some = peaks.argsort(descending=True)[:CANDIDATES].tolist()
    full = [divmod(i, measured.peak.shape[1]) for i in some if peaks[i] >= peaks.max() / 2]
    found = [_look(subject, measured, head, lam) for head in full]
    best = max(found, key=lambda one: one.revealed)
    if not best.revealed:
        return looked
    first, *others = looked
    rest = [one for one in others if one[:2] != best[:2]]
    return [first, *([best] if best[:2] != first[:2] else []), *rest]


def _look(subject: Subject, measured: Measured, place: Head, lam: float | None) -> Overloaded:
    """A head on the sample in which it is most overloaded, before and after balance."""
    layer, head = place
    sample = measured.worst[layer][head]
    before = plan_of(subject, sample, layer, head)
    after = None if lam is None else plan_of(subject, sample, layer, head, lam)
    one = Overloaded(
        layer, head, sample, "", len(before), subject.causal, before, after, lam
    )  # fmt: skip
    return one._replace(token=subject.key_names(sample, before.shape[1])[one.key])


def _count_heads(subject: Subject) -> list[int]:
    if subject.own:
        return [int(layer.heads) for layer in own.layers_of(subject).values()]
    layers = huggingface.attention_layers(subject.model)
    return [count_heads(name, layer) for name, layer in layers.items()]


def _command(
    name: str,
    texts: Sequence[str],
    images: Sequence[Path],
    lams: Sequence[float],
    heads: Sequence[Head],
    each_head: bool,
    device: torch.device,
) -> str:
    """The command that makes the report again; of many texts only the first are in it."""
    words = ["bistoch", "inspect", name]
    options: list[tuple[str, Sequence[object]]] = [
        ("--text", texts[:TEXTS]), ("--images", images), ("--lam", [f"{lam:g}" for lam in lams]),
        ("--head", [f"{layer}.{head}" for layer, head in heads]),
        ("--device", [device] if device.type != "cpu" else []),
    ]  # fmt: skip
    words += [
        str(word) for option, values in options for value in values for word in (option, value)
    ]
    more = "" if len(texts) <= TEXTS else f"   # and {len(texts) - TEXTS} texts more"
    return shlex.join([*words, *([] if each_head else ["--no-each-head"])]) + more


def _why_no_swap(subject: Subject) -> str | None:
    """A sentence if nothing can be swapped into the model."""
    if subject.own:
        return own.why_no_swap(subject)
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
    largest = measured.peak.nan_to_num(0).flatten().argsort(descending=True)[:SHOWN].tolist()
    found = [divmod(i, width) for i in largest]
    return [found[0], *(head for head in heads or found if head != found[0])]
