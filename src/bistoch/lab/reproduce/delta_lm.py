"""Delta attention in a pretrained language model, without any training, and what is left of it."""

import functools
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from bistoch.lab.data import load
from bistoch.lab.drawing import INK, PALETTE, QUIET, legend_beside, sheet, tidy
from bistoch.lab.reproduce.smollm import Subject, load_smollm, make_small_model
from bistoch.lab.study import Cell, Column, Context, Result, Results, Study, Table, Verdict
from bistoch.lab.timing import best_times

# what computes attention in all layers, by the word for it; None is the model as it is
METHODS = {
    "dense": None,
    "window": "correction='none'",
    "recompute 16": "stride=16, correction='recompute'",
    "delta 8": "stride=8",
    "delta 16": "stride=16",
    "delta 32": "stride=32",
    "delta 64": "stride=64",
    "mass 16": "stride=16, correction='mass'",
    "mass 64": "stride=64, correction='mass'",
}
# those that read the longest texts
LONG = ("dense", "window", "recompute 16", "delta 16", "mass 16")
TIMED = ("dense", "window", "delta 16", "mass 16")
PUBLISHED = ("window", "recompute 16", "delta 16", "dense")
STYLES = dict(zip(METHODS, (
    INK, QUIET, PALETTE[4], "#f2b38a", "#e98a4c", PALETTE[1], "#8a3d00", "#56a0d3", PALETTE[0],
), strict=True))  # fmt: skip
NEEDLE = " The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = " What is the pass key? The pass key is {key}"
FILLER = (
    " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
)
DIGITS = 5


@dataclass(frozen=True)
class Sizes:
    """Lengths of the texts and of the hay, the sparse rows, and what is timed."""

    lengths: tuple[int, ...] = (1024, 2048, 4096)
    hay: tuple[int, ...] = (1024,)
    depths: tuple[float, ...] = (0.1, 0.5, 0.9)
    window: int = 256
    sink: int = 16
    # tokens whose losses are one sample of a paired difference
    together: int = 32
    timed: tuple[int, ...] = (1024, 4096)
    timed_layers: int = 6
    rounds: int = 2
    small: bool = False


FULL = Sizes()
SMOKE = Sizes((96,), (128,), (0.5,), 16, 2, 16, (64,), 2, 1, small=True)


def operator_of(method: str, sizes: Sizes, tail: int = 0) -> str | None:
    """The operator of a method as a text; a tail is what a decoder with all keys would compute.

    >>> operator_of("delta 8", FULL)
    'delta(window=256, sink=16, tail=0, stride=8)'
    """
    if METHODS[method] is None:
        return None
    return f"delta(window={sizes.window}, sink={sizes.sink}, tail={tail}, {METHODS[method]})"


def cells(smoke: bool) -> list[Cell]:
    """Texts by length and method, then keys to find, then the time."""
    sizes = SMOKE if smoke else FULL
    lengths = list(sizes.lengths)
    # enwik8 at one length: it is there to see whether another text says the same; long texts last
    texts = [("wikitext2", n) for n in lengths[:2]]
    texts += [] if smoke else [("enwik8", lengths[1])]
    read = [_read_cell(text, n, method) for text, n in texts for method in METHODS]
    found = [
        Cell(f"key in {n}, {method}", {"hay": n, "method": method}, seeded=False)
        for n in sizes.hay
        for method in METHODS
    ]
    longest = [_read_cell("wikitext2", n, method) for n in lengths[2:] for method in LONG]
    timed = [
        Cell(f"time {n}", {"timed": n, "methods": list(TIMED)}, seeded=False) for n in sizes.timed
    ]
    return [*read, *found, *longest, *timed]


def _read_cell(text: str, n: int, method: str) -> Cell:
    return Cell(f"{text} {n}, {method}", {"text": text, "n": n, "method": method}, seeded=False)


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Losses of a text, keys that were found, or times."""
    sizes: Sizes = context.sizes
    subject = make_small_model() if sizes.small else load_smollm()
    if "timed" in cell.options:
        return _time(subject, cell.options["timed"], cell.options["methods"], sizes)
    method = cell.options["method"]
    if "hay" in cell.options:
        return _find(subject, cell.options["hay"], method, sizes, context)
    ids = _text(cell.options["text"], sizes.small, cell.options["n"])
    losses, _ = subject.losses(ids, operator_of(method, sizes))
    # rows that see all keys lose nothing
    losses = losses[sizes.window + sizes.sink :]
    count = len(losses) // sizes.together * sizes.together
    samples = losses[:count].reshape(-1, sizes.together).mean(-1)
    return {"perplexity": losses.mean().exp().item(), "losses": samples.tolist()}


@functools.cache
def _text(name: Any, small: bool, n: int) -> Int[Tensor, "n"]:
    """The first tokens of a test split."""
    if small:
        return torch.tensor(list((FILLER * n).encode()[:n]))
    text = load(name).test
    text = text if isinstance(text, str) else text.decode(errors="replace")
    return load_smollm().tokens(text[: 12 * n])[:n]


def hide_key(subject: Subject, n: int, depth: float, key: str) -> tuple[Tensor, int]:
    """A text of about n tokens with a key at some depth, and how many tokens the key has.

    The text ends with a question and the key, so that one pass tells what a decoder would say.
    """
    needle, question = (subject.tokens(text.format(key=key)) for text in (NEEDLE, QUESTION))
    answer = len(question) - len(subject.tokens(QUESTION.format(key="").rstrip()))
    hay = subject.tokens(FILLER * n)[: n - len(needle) - len(question)]
    place = int(depth * len(hay))
    return torch.cat([hay[:place], needle, hay[place:], question]), answer


def _find(subject: Subject, n: int, method: str, sizes: Sizes, context: Context) -> Result:
    """How many digits of keys are found, and their loss, by depth."""
    found, losses = {}, {}
    for number, depth in enumerate(sizes.depths):
        context.step(number, len(sizes.depths), f"depth {depth:g}")
        generator = torch.Generator().manual_seed(1000 * n + number)
        key = "".join(map(str, torch.randint(0, 10, (DIGITS,), generator=generator).tolist()))
        ids, answer = hide_key(subject, n, depth, key)
        operator = operator_of(method, sizes, tail=answer)
        loss, likely = subject.losses(ids, operator, first=len(ids) - answer)
        found[f"{depth:g}"] = (likely == ids[-answer:]).float().mean().item()
        losses[f"{depth:g}"] = loss.mean().item()
    return {"found": found, "losses": losses, "all": sum(found.values()) / len(found)}


def _time(subject: Subject, n: int, methods: list[str], sizes: Sizes) -> Result:
    """Seconds of some layers for a whole text, by method, in turns."""
    ids, model = _text("wikitext2", sizes.small, n), subject.model.base_model
    layers = model.layers

    def read(method: str) -> None:
        with torch.no_grad(), subject.swapped(operator_of(method, sizes)):
            model.layers = layers[: sizes.timed_layers]
            try:
                model(ids[None], use_cache=False)
            finally:
                model.layers = layers

    return best_times({m: functools.partial(read, m) for m in methods}, sizes.rounds)


def tables(results: Results) -> list[Table]:
    """Perplexity by text, keys by depth, and time."""
    found = []
    for text, n in _texts(results):
        names = results.names_with(text=text, n=n)
        found.append(
            results.table(
                [Column("perplexity", "perplexity", ".2f")],
                f"Perplexity on {text}, {n} tokens, of those that may lose a key.",
                names=names,
                labels={"method": "method"},
                more={"loss less that of dense": _beside_dense(results, names)},
            )
        )
    for n in _numbers(results, "hay"):
        depths = list(results.values(f"key in {n}, dense", "found")[0])
        columns = [Column(f"at {depth}", _at(depth), ".2f") for depth in depths]
        columns.append(Column("loss", lambda one: sum(one["losses"].values()) / len(one["losses"])))
        names = results.names_with(hay=n)
        caption = f"Share of the digits of a key that are found in {n} tokens, by its depth."
        found.append(results.table(columns, caption, names=names, labels={"method": "method"}))
    timed = {n: results.times_over("dense", f"time {n}") for n in _numbers(results, "timed")}
    rows = [(method, *(timed[n][method] for n in timed)) for method in TIMED]
    caption = "Time over dense, of the first layers of the model, best of interleaved rounds."
    return [*found, Table(("method", *(f"{n} tokens" for n in timed)), rows, caption)]


def checks(results: Results) -> list[Verdict]:
    """The published order, text by text, and the correction of this library beside two others."""
    verdicts = []
    ours = (("delta 16", "mass 16"), ("recompute 16", "mass 16"))
    for text, n in _texts(results):
        for worse, better in (*pairwise(PUBLISHED), *ours):
            claim = f"{text}, {n} tokens: {better} has a lower loss than {worse}"
            names = (f"{text} {n}, {better}", f"{text} {n}, {worse}")
            verdicts.append(results.claim(claim, *names, "losses", larger=False))
    return verdicts


def figure(results: Results) -> Any:
    """Perplexity over the stride, and keys found over the length."""
    texts = _texts(results)
    made, ((left, right),) = sheet(1, 2, width=5.2, height=3.6)
    text, n = texts[min(1, len(texts) - 1)]
    names = [results.options(name)["method"] for name in results.names_with(text=text, n=n)]
    values = [results.mean(f"{text} {n}, {name}", "perplexity") for name in names]
    left.barh(names[::-1], values[::-1], color=[STYLES[name] for name in names[::-1]])
    for place, value in enumerate(values[::-1]):
        left.text(value, place, f" {value:.1f}", va="center", fontsize=8, color=INK)
    left.set_xlim(0, 1.15 * max(values))
    tidy(left, f"perplexity, {text}, {n} tokens")
    n = _numbers(results, "hay")[-1]
    for name in (results.options(one)["method"] for one in results.names_with(hay=n)):
        found = results.values(f"key in {n}, {name}", "losses")[0]
        right.plot([float(depth) for depth in found], [math.exp(-x) for x in found.values()],
                   color=STYLES[name], marker="o", markersize=3.5, label=name)  # fmt: skip
    tidy(right, f"probability per token of a key in {n} tokens", "depth")
    legend_beside(made, right)
    return made


def _at(depth: str) -> Any:
    return lambda one: one["found"][depth]


def _beside_dense(results: Results, names: list[str]) -> dict[str, str]:
    found = {}
    for name in names:
        base = name.replace(results.options(name)["method"], "dense")
        difference = None if name == base else results.difference(name, base, "losses")
        found[name] = "" if difference is None else difference.text(".3f")
    return found


def _numbers(results: Results, option: str) -> list[int]:
    return list(dict.fromkeys(r.options[option] for r in results.rows if option in r.options))


def _texts(results: Results) -> list[tuple[str, int]]:
    read = [row.options for row in results.rows if "text" in row.options]
    return list(dict.fromkeys((options["text"], options["n"]) for options in read))


STUDY = Study(
    name="delta-lm",
    title="Delta attention in a pretrained language model",
    question="How much of a language model is left when its prefill is sparse, with and without "
    "a correction?",
    source="Willette, Lee, Hwang, Delta Attention, NeurIPS 2025; here on SmolLM2-135M",
    about="All layers of SmolLM2-135M (30 layers, 9 heads, trained with full attention) read a "
    "text with sparse rows, all weights as they are. Window: the last 256 and the first 16 keys. "
    "Recompute: every 16th row is dense besides. Delta: what a dense row changes is added to the "
    "rows up to the next one, at strides 8 to 64. Mass: the correction of this library, at strides "
    "16 and 64. Perplexity counts the tokens whose rows may lose "
    "a key. Keys of five digits are hidden in a text that repeats itself; the answer is decoded "
    "with all keys at hand, after a sparse prefill.",
    sizes=lambda settings: SMOKE if settings.smoke else FULL,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Left: perplexity by method. Right: how likely a hidden key is found, by its depth.",
    seeds=(0,),
)
