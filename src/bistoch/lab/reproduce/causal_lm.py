"""Causal balance in a language model: whether it helps, and whether balance is the reason."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import nn

from bistoch.lab.data import Corpus, load
from bistoch.lab.drawing import INK, PALETTE, QUIET, sheet, tidy
from bistoch.lab.reproduce.causal_controls import AverageBias, BorrowedBias, StreamedRatio
from bistoch.lab.reproduce.causal_measure import METRICS, attention, beside_oracle, bits
from bistoch.lab.study import Cell, Column, Context, Result, Results, Study, Table, Verdict
from bistoch.lab.train import NextCharacter, Recipe, fit, time_steps
from bistoch.lab.train.checkpoint import load_checkpoint, load_weights
from bistoch.lab.train.loop import CHECKPOINT
from bistoch.lab.train.seeds import preserved_random_state, seed_all
from bistoch.models import LanguageConfig, LanguageModel

Bias = Literal["own", "of the distance", "of another", "own, held fixed", "streamed ratio"]


class Line(NamedTuple):
    """A line of the table: where its bias comes from, and whether positions are learned."""

    name: str
    operator: str
    bias: Bias = "own"
    learned_positions: bool = False


RECIPE = Recipe(epochs=1, batch_size=4, lr=2e-3, weight_decay=0.1)


@dataclass(frozen=True)
class Sizes:
    """The model, its windows, and what is measured afterwards.

    `tested` are the lengths of windows on the test split, the first that of training. `captured`
    windows of that length are taken to look at attention.
    """

    data: str = "tiny-shakespeare"
    recipe: Recipe = RECIPE
    depth: int = 2
    dim: int = 64
    heads: int = 4
    block: int = 32
    tested: tuple[int, int] = (256, 1024)
    captured: int = 16
    rounds: int = 7


FULL = Sizes()
SMOKE = Sizes("made words", Recipe(epochs=1, batch_size=8, lr=2e-3), 1, 8, 2, 8, (32, 64), 4, 2)


def balanced(lam: float) -> str:
    """The text of causal balance.

    >>> balanced(0.5)
    'causal_elastic(lam=0.5, block=32)'
    """
    return f"causal_elastic(lam={lam:g}, block=32)"


# the elasticity whose bias the controls have
CONTROLLED = 1.0
LEARNED = "learned positions: "
LINES = (
    Line("softmax", "softmax"),
    Line("lam 1", balanced(1.0)),
    Line("lam learned", "causal_elastic(learn='head', lam=0.5, block=32)"),
    Line("lam 0.5", balanced(0.5)),
    Line("sink logit", "sink(learn='head')"),
    Line("control: bias of the distance", balanced(CONTROLLED), "of the distance"),
    Line("control: mass of another text", balanced(CONTROLLED), "of another"),
    Line(f"{LEARNED}softmax", "softmax", learned_positions=True),
    Line(f"{LEARNED}lam 1", balanced(1.0), learned_positions=True),
    Line("lam 0.25", balanced(0.25)),
    Line(f"{LEARNED}streamed ratio", balanced(1.0), "streamed ratio", True),
    Line("streamed ratio", balanced(1.0), "streamed ratio"),
    Line("control: own bias, held fixed", balanced(CONTROLLED), "own, held fixed"),
    Line(f"{LEARNED}bias of the distance", balanced(CONTROLLED), "of the distance", True),
    Line(f"{LEARNED}mass of another text", balanced(CONTROLLED), "of another", True),
)


def cells(smoke: bool) -> list[Cell]:
    """Every line; what an exact oracle would do in the first; the time of a training step."""
    trained = [Cell(line.name, line._asdict()) for line in LINES]
    return [*trained, Cell("oracle"), Cell("time", seeded=False)]


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Train and measure a line."""
    sizes: Sizes = context.sizes
    task = open_text(sizes)
    if cell.name == "time":
        models = {line.name: new_model(sizes, line, task, 0) for line in LINES}
        return time_steps(models, task, sizes.recipe, rounds=sizes.rounds, warmup=1)
    if cell.name == "oracle":
        context.result("softmax")
        checkpoint = context.folder_of("softmax") / CHECKPOINT
        model = new_model(sizes, LINES[0], task, seed).eval()
        load_weights(checkpoint, load_checkpoint(checkpoint)[1], model, "model")
        return beside_oracle(model, task.ids["test"][: sizes.tested[0]], sizes.block)
    line = Line(**cell.options)
    model = new_model(sizes, line, task, seed)
    fitted = fit(
        model, task, sizes.recipe, folder=context.folder, seed=seed, on_step=context.on_step
    )
    # learned positions end at the length of training
    lengths = sizes.tested[:1] if line.learned_positions else sizes.tested
    text, longest = task.ids["test"], max(sizes.tested)
    # the same characters for every length
    shown = text[: min(sizes.captured * sizes.tested[0], len(text)) // longest * longest]
    return {
        "bits": {str(length): bits(model, text, length, longest) for length in lengths},
        "attention": {
            str(length): attention(model, shown.reshape(-1, length)) for length in lengths
        },
        "curve": fitted.curve,
        "steps": fitted.steps,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


@functools.cache
def open_text(sizes: Sizes) -> NextCharacter:
    """The text of a run in windows; that of a smoke run is made here."""
    corpus = made_words() if sizes.data == SMOKE.data else load(sizes.data)
    if not isinstance(corpus, Corpus):
        raise ValueError(f"causal-lm: running text is needed, but {sizes.data} is {corpus.kind}")
    return NextCharacter(corpus, length=sizes.tested[0])


def new_model(sizes: Sizes, line: Line, task: NextCharacter, seed: int) -> LanguageModel:
    """The model of a line before training: for one seed all start from the same weights."""
    config = LanguageConfig(
        vocabulary=task.sizes["vocabulary"], depth=sizes.depth, dim=sizes.dim, heads=sizes.heads,
        positions=sizes.tested[0] if line.learned_positions else None,
    )  # fmt: skip
    with preserved_random_state():
        seed_all("weights", seed)
        return LanguageModel(config, _operator(sizes, line))


def _operator(sizes: Sizes, line: Line) -> str | nn.Module:
    if line.bias == "own":
        return line.operator.replace("block=32", f"block={sizes.block}")
    if line.bias == "of the distance":
        return AverageBias(CONTROLLED, sizes.block, sizes.heads, sizes.tested[0])
    if line.bias == "streamed ratio":
        return StreamedRatio(CONTROLLED, sizes.block)
    return BorrowedBias(CONTROLLED, sizes.block, shift=1 if line.bias == "of another" else 0)


def made_words() -> Corpus:
    """A text of words that do not exist: enough to see that everything works."""
    random = np.random.default_rng(0)
    syllables = [a + b for a in "bdfglmnprst" for b in "aeiou"]
    words = ["".join(random.choice(syllables, random.integers(1, 4))) for _ in range(50)]
    text = " ".join(random.choice(words, 2600))
    return Corpus("made words", "corpus", text[:6000], text[6000:7000], text[7000:9000])


def base_of(name: str) -> str:
    """The line of softmax that a line is compared with: that with the same positions.

    >>> base_of("learned positions: lam 1"), base_of("lam 1")
    ('learned positions: softmax', 'softmax')
    """
    return f"{LEARNED}softmax" if name.startswith(LEARNED) else "softmax"


def lines_of(results: Results) -> list[str]:
    """The names of all trained lines, in order."""
    return [name for name in results.names if name not in ("oracle", "time")]


def tables(results: Results) -> list[Table]:
    """Bits and time, attention at both lengths, the oracle, what was learned of lam."""
    names, lengths = lines_of(results), results.sizes["tested"]
    scores = results.table(
        [Column(f"bits at {length}", f"bits.{length}", compared=True) for length in lengths],
        "Bits per character of the test split, mean and standard deviation over seeds; "
        "difference: less softmax with the same seed, with its 95 % interval. Learned positions "
        "end at the length of training. Training steps were timed taking turns.",
        names=names, baseline=base_of, more={"step, over softmax": results.times_over("softmax")},
    )  # fmt: skip
    found = [scores]
    for length in lengths:
        known = [name for name in names if results.values(name, f"bits.{length}")]
        columns = [
            Column(title, f"attention.{length}.{key}", form)
            for key, (title, form) in METRICS.items()
        ]
        caption = f"Attention in windows of {length}. {ATTENTION}"
        found.append(results.table(columns, caption, names=known))
    return [*found, oracle_table(results), lam_table(results)]


ATTENTION = (
    "Means over layers, heads and windows. Sink rate: plans in which a key of the first half "
    "receives over 0.3 of the attention of those who see it; first token: its mean weight in a "
    "row; overload: what a key received over its share of uniform causal attention, the largest, "
    "also in the first half alone; deviation: the mean distance of the overload from one; "
    "kurtosis: of the states after every block, 3 for a Gaussian."
)


def oracle_table(results: Results) -> Table:
    """What balance would do in the heads of the model with softmax, beside the exact oracle."""
    keys = {key: title for key, title in METRICS.items() if key != "kurtosis"}
    keys["far"] = ("to the oracle", ".2f")
    found = results.by_seed("oracle").values()
    rows = [
        (name, *(f"{np.mean([one[name][key] for one in found]):{form}}"
                 for key, (_, form) in keys.items()))
        for name in next(iter(found))
    ]  # fmt: skip
    return Table(
        ("update", *(title for title, _ in keys.values())), rows,
        "The heads of the model with softmax on one window of the test split, and what balance "
        "would make of their scores, without training. The oracle balances every prefix exactly, "
        "at n^3; to the oracle: mean L1 distance of rows.",
    )  # fmt: skip


def lam_table(results: Results) -> Table:
    """What every head learned, by seed and layer."""
    length, rows = str(results.sizes["tested"][0]), []
    for name in lines_of(results):
        for seed, result in results.by_seed(name).items():
            for layer, lams in result["attention"][length]["lam"].items():
                heads = "  ".join(f"{lam:.2f}" for lam in lams)
                rows.append((name, str(seed), layer.removesuffix(".attention.operator"), heads))
    head = ("operator", "seed", "layer", "lam of every head")
    return Table(head, rows, "The elasticity that was learned.")


def checks(results: Results) -> list[Verdict]:
    """What was asked, beside what was measured; a difference counts beyond its 95 % interval."""
    short, long = (f"bits.{length}" for length in results.sizes["tested"])
    fewer, positions = "fewer bits than softmax", f"{LEARNED}softmax"
    asked = [
        (f"{name}: {fewer}", name, "softmax", short)
        for name in ("lam 0.25", "lam 0.5", "lam 1", "lam learned", "sink logit")
    ]
    asked += [
        (f"{name}: {fewer} on texts longer than those of training", name, "softmax", long)
        for name in ("lam 1", "lam learned")
    ]
    asked += [
        (f"{LEARNED}{name}: {fewer}", f"{LEARNED}{name}", positions, short)
        for name in ("lam 1", "streamed ratio")
    ]
    for ours, controls in (("lam 1", "control: "), (f"{LEARNED}lam 1", LEARNED)):
        asked += [
            (f"{ours}: fewer bits than with the {bias}", ours, f"{controls}{bias}", short)
            for bias in ("bias of the distance", "mass of another text")
        ]
        deviation = f"attention.{results.sizes['tested'][0]}.deviation"
        claim = f"{ours}: columns more even than those of softmax"
        asked.append((claim, ours, base_of(ours), deviation))
    known = set(results.names)
    return [
        results.claim(claim, ours, base, metric, larger=False, unit=metric.split(".")[-1]
                      if "attention" in metric else "bits")
        for claim, ours, base, metric in asked if {ours, base} <= known
    ]  # fmt: skip


def figure(results: Results) -> Any:
    """Differences to softmax by line, one panel for each length."""
    names = [name for name in lines_of(results) if name != base_of(name)][::-1]
    lengths: Sequence[int] = results.sizes["tested"]
    made, axes = sheet(1, len(lengths), width=4.2, height=0.9 + 0.26 * len(names), sharey=True)
    for panel, length in zip(axes[0], lengths, strict=True):
        panel.axvline(0, color=INK, linewidth=0.8)
        for place, name in enumerate(names):
            less = results.difference(name, base_of(name), f"bits.{length}")
            if less is not None:
                is_control = "control" in name or "distance" in name or "another" in name
                colour = QUIET if is_control else PALETTE[0]
                panel.scatter(less.each, [place] * len(less.each), s=20, color=colour, alpha=0.6,
                              linewidths=0)  # fmt: skip
                panel.scatter([less.mean], [place], s=90, marker="|", color=colour)
        panel.set_yticks(range(len(names)), names)
        tidy(panel, f"windows of {length}", "bits per character less those of softmax")
    return made


STUDY = Study(
    name="causal-lm",
    title="Causal balance in a language model",
    question="Does causal balance help a language model, and is it the balance that helps?",
    source="this library, on the characters of tiny Shakespeare",
    about="Models of the next character, with rotary positions unless said otherwise. For one seed "
    "all lines start from the same weights and see the same windows in the same order. The "
    "controls are softmax with a bias of the size of that of lam 1: its mean per distance, that "
    "of another text of the batch, or its own, through which no gradient runs. The streamed ratio "
    "is the plain log of fair share over mass received.",
    sizes=lambda settings: SMOKE if settings.smoke else FULL,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Bits less those of softmax, a dot per seed, at the length of training and longer.",
)
