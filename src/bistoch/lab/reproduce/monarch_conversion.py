"""Monarch attention in trained models, without training them again, and Monarch from scratch.

Published is a vision Transformer that keeps 93.3 of 95.1 % (top 5 of ImageNet) at 35 % of the work
of its attention. Here it is a small one on CIFAR-10 with 16 x 16 tokens, and a sentence encoder on
texts of 512 tokens.
"""

from dataclasses import dataclass
from typing import Any

from bistoch.lab.drawing import PALETTE, QUIET, legend, row, tidy
from bistoch.lab.reproduce import converted_vit as vision
from bistoch.lab.reproduce.cheap_attention import make_form, softmax_work, work_of
from bistoch.lab.reproduce.long_texts import count_layers, load_texts
from bistoch.lab.study import Cell, Column, Context, Result, Results, Study, Table, Verdict

# how forms are drawn, by the first words of their names
STYLES = {"monarch": PALETTE[0], "tiled": PALETTE[2], "misaligned": PALETTE[1],
          "nystroem": PALETTE[3], "window": QUIET}  # fmt: skip
PUBLISHED = {"softmax": "95.1 at 1.00", "monarch rows, T=1": "90.3 at .19",
             "monarch rows, T=2": "93.3 at .35", "monarch rows, T=3": "93.3 at .51",
             "nystroem 32": "74"}  # fmt: skip
SCRATCH = {
    "softmax": "softmax",
    "elastic": "elastic(lam=1.0, iters=5)",
    "elastic_monarch": "elastic_monarch(lam=1.0, iters=5, block={}, pad='pre')",
}


@dataclass(frozen=True)
class Sizes:
    """The parts of the study: pictures, and texts as articles, parts of each, and tokens."""

    pictures: vision.Vision = vision.Vision()  # noqa: RUF009 (it is frozen)
    articles: int = 5
    parts: int = 3
    length: int = 512


SMOKE = Sizes(vision.SMOKE, 0, 1, 64)


def picture_forms(smoke: bool) -> dict[str, str]:
    """What stands in the place of softmax in the vision Transformer."""
    side = 4 if smoke else 16
    root, grid = 2 if smoke else 4, f"grid=({side}, {side})"
    found = {"softmax": "softmax"}
    blocks = {"rows": f"(1, {side})", "columns": f"({side}, 1)", "squares": f"({root}, {root})"}
    for name, block in blocks.items():
        for updates in (1, 2, 3) if name == "rows" else (2,):
            found[f"monarch {name}, T={updates}"] = (
                f"monarch(iters={updates}, {grid}, block={block})"
            )
    for size in (side - 1, side + 1):
        found[f"misaligned blocks of {size}, T=2"] = f"monarch(iters=2, block={size})"
    for tiles in ((2, 1), (2, 2), (4, 4)):
        found["tiled rows {} x {}, T=2".format(*tiles)] = (
            f"monarch(iters=2, {grid}, block=(1, {side}), tiles={tiles})"
        )
    found |= {f"nystroem {rank}": f"nystroem({rank})" for rank in ((4,) if smoke else (8, 16, 32))}
    return found | {f"window {reach}": f"window({reach})" for reach in (1, 2, 4)}


def text_forms(smoke: bool) -> dict[str, str]:
    """What stands in the place of softmax in the encoder."""
    if smoke:
        return {"monarch, T=2": "monarch(iters=2, block=8)", "window 8": "window(8)"}
    found = {f"monarch, T={t}": f"monarch(iters={t}, block=32)" for t in (1, 2, 3)}
    found["tiled 2 x 2, T=2"] = "monarch(iters=2, block=32, tiles=(2, 2))"
    return found | {"nystroem 64": "nystroem(64)", "window 64": "window(64)"}


def cells(smoke: bool) -> list[Cell]:
    """The encoder first, which needs no training; then pictures; the time comes last."""
    texts = text_forms(smoke)
    first = "monarch, T=2"
    layers = 2 if smoke else 6
    alone = [Cell(f"text, {first}, layer {i}", {"part": "text", "form": texts[first], "layer": i})
             for i in range(layers)]  # fmt: skip
    found = [Cell(f"text, {name}", {"part": "text", "form": form}) for name, form in texts.items()]
    found += alone
    found += [
        Cell(
            f"text, {first}, without {count}",
            {"part": "text", "form": texts[first], "without": count},
        )
        for count in ((1,) if smoke else (1, 2, 3))
    ]  # fmt: skip
    block = 4 if smoke else 8
    found += [
        Cell(f"from scratch, {name}", {"part": "scratch", "operator": operator.format(block)})
        for name, operator in SCRATCH.items()
    ]
    found.append(Cell("trained", {"part": "train"}))
    forms = picture_forms(smoke)
    found += [Cell(name, {"part": "vision", "form": form}) for name, form in forms.items()]
    found += [
        Cell(f"{name}, tuned", {"part": "tune", "form": forms[name]})
        for name in ("softmax", "monarch rows, T=1")
    ]
    return [*found, Cell("time", {"part": "time"}, seeded=False)]


def run(cell: Cell, seed: int, context: Context) -> Result:
    """One form in one model, one training, or the time of all."""
    sizes: Sizes = context.sizes
    options, pictures = cell.options, sizes.pictures
    if options["part"] == "text":
        return _run_text(cell, context)
    if options["part"] == "train":
        model, curve = vision.train(pictures, context)
        return {"curve": curve, "parameters": sum(p.numel() for p in model.parameters())}
    if options["part"] == "scratch":
        return vision.train_small(pictures, options["operator"], context)
    if options["part"] == "vision":
        return vision.convert_vit(pictures, options["form"], context)
    if options["part"] == "tune":
        return vision.tune_vit(pictures, options["form"], context)
    block = 4 if context.smoke else 8
    operators = {name: operator.format(block) for name, operator in SCRATCH.items()}
    forms = {k: f for k, f in picture_forms(context.smoke).items() if not k.startswith("window")}
    return vision.time_forms(pictures, forms, operators)


def _run_text(cell: Cell, context: Context) -> Result:
    sizes: Sizes = context.sizes
    texts, count = load_texts(sizes.articles, sizes.parts, sizes.length), count_layers()
    layers = list(range(count))
    if "layer" in cell.options:
        layers = [cell.options["layer"]]
    elif "without" in cell.options:
        known = range(2 if context.smoke else count)
        name = "text, monarch, T=2, layer {}"
        left = {i: context.result(name.format(i))["cosine"] for i in known}
        # those that suffer most stay as they are
        worst = sorted(left, key=lambda i: left[i])[: cell.options["without"]]
        layers = [i for i in layers if i not in worst]
    form, n = make_form(cell.options["form"], 1, 32, sizes.length), sizes.length
    share = work_of(form, n, 32) / softmax_work(n, 32)
    work = (share * len(layers) + count - len(layers)) / count
    return texts.compare(cell.options["form"], layers) | {"layers": layers, "work": work}


def tables(results: Results) -> list[Table]:
    """Pictures, texts, and training from scratch."""
    timed = results.by_seed("time")[0]
    seconds = timed["attention"]["seconds"]
    times = {name: f"{took / seconds['softmax']:.2f}" for name, took in seconds.items()}
    tuned = {
        name: f"{100 * results.mean(f'{name}, tuned', 'accuracy'):.1f}"
        for name in seconds if f"{name}, tuned" in results.names
    }  # fmt: skip
    pictures = [
        Column("accuracy (%)", "accuracy", ".1f", 100), Column("work", "work", ".2f"),
        Column("error of plans", "error", ".2f"),
    ]  # fmt: skip
    texts = [
        Column("work", "work", ".2f"), Column("cosine", "cosine"), Column("lowest", "lowest"),
        Column("Spearman", "spearman"), Column("same article", "topic"),
    ]  # fmt: skip
    scratch = [Column("accuracy (%)", "accuracy", ".1f", 100),
               Column("column deviation", "deviation")]  # fmt: skip
    steps = timed["training"]["seconds"]
    over = {f"from scratch, {n}": f"{took / steps['softmax']:.2f}" for n, took in steps.items()}
    return [
        results.table(pictures, PICTURES, names=results.names_with(part="vision"), more={
            "time": times, "fine-tuned (%)": tuned, "published (%)": PUBLISHED}),
        results.table(texts, TEXTS, names=results.names_with(part="text")),
        results.table(scratch, FROM_SCRATCH, names=results.names_with(part="scratch"),
                      more={"step, over softmax": over}),
    ]  # fmt: skip


PICTURES = (
    "The vision Transformer with other attention in all layers. Work and time of attention are "
    "over those of softmax. Published: ViT-B/16 on ImageNet, top 5, with rows of 14 patches."
)
TEXTS = (
    "The sentence encoder on texts of 512 tokens. Cosine: between the embedding of a text and that "
    "of the model as it is. Same article: how often the nearest other text is of the same article."
)
FROM_SCRATCH = (
    "A smaller vision Transformer (64 tokens and a class token) after 300 steps. Column deviation: "
    "mean absolute difference of column sums from one, over all layers and heads."
)


def checks(results: Results) -> list[Verdict]:
    """The shape of what is published."""
    plain, full = "monarch rows, T=2", results.mean("softmax", "accuracy")
    lost = [100 * x for x in results.values(plain, "difference")[0]]
    rows = {t: results.mean(f"monarch rows, T={t}", "accuracy") for t in (1, 2, 3)}
    crooked = results.names_with(part="vision")
    crooked = [name for name in crooked if name.startswith("misaligned")]
    best = max(results.mean(name, "accuracy") for name in crooked)
    work = results.mean(plain, "work")
    cheap = [
        name for name in results.names_with(part="vision")
        if name.startswith("nystroem") and results.mean(name, "work") <= 2 * work
    ]  # fmt: skip
    rival = max(results.mean(name, "accuracy") for name in cheap)
    tiled = [
        "monarch rows, T=2",
        *(f"tiled rows {a} x {b}, T=2" for a, b in ((2, 1), (2, 2), (4, 4))),
    ]
    errors = [results.mean(name, "error") for name in tiled]
    words = ", ".join(f"{100 * x:.1f}" for x in rows.values())
    return [
        Verdict("two updates lose at most two points, as published (95.1 to 93.3)",
                f"{lost[0]:+.1f} [{lost[1]:+.1f}, {lost[2]:+.1f}] points at {work:.2f} of the work",
                _holds(lost[0] >= -2)),
        Verdict("the second update gains more than the third, as published (90.3, 93.3, 93.3)",
                f"{words} %, softmax {100 * full:.1f} %",
                _holds(rows[2] - rows[1] > rows[3] - rows[2])),
        Verdict("blocks along the grid are better than others",
                f"{100 * rows[2]:.1f} and at best {100 * best:.1f} %", _holds(rows[2] > best)),
        Verdict("Monarch keeps more than Nystroem of up to twice its work",
                f"{100 * rows[2]:.1f} and at best {100 * rival:.1f} %", _holds(rows[2] > rival)),
        Verdict("every finer tiling has a smaller error",
                ", ".join(f"{x:.3f}" for x in errors), _holds(errors == sorted(errors)[::-1])),
    ]  # fmt: skip


def _holds(condition: bool) -> str:
    return "yes" if condition else "no"


def figure(results: Results) -> Any:
    """Accuracy over work, error of plans over work, and what is left of the encoder."""
    made, (left, middle, right) = row(3, width=4.2, height=3.3)
    full = results.mean("softmax", "accuracy")
    left.axhline(100 * full, color=PALETTE[6], linewidth=1, label="softmax")
    names = results.names_with(part="vision")
    for axes, metric, scale in ((left, "accuracy", 100), (middle, "error", 1)):
        _points(axes, results, {n: n for n in names if n != "softmax"}, metric, scale)
    tidy(left, "pictures: accuracy (%)", "work over softmax")
    tidy(middle, "pictures: error of the plans", "work over softmax")
    texts = {
        n.removeprefix("text, "): n for n in results.names_with(part="text")
        if "layer" not in results.options(n)
    }  # fmt: skip
    _points(right, results, texts, "cosine", 1)
    tidy(right, "texts: cosine with the original", "work over softmax")
    legend(left)
    return made


def _points(axes: Any, results: Results, names: dict[str, str], metric: str, scale: float) -> None:
    for kind, colour in STYLES.items():
        chosen = [name for label, name in names.items() if label.startswith(kind)]
        if chosen:
            x, y = ([results.mean(n, what) for n in chosen] for what in ("work", metric))
            axes.scatter(x, [scale * one for one in y], color=colour, s=18, label=kind, zorder=3)


ABOUT = """
A vision Transformer (CIFAR-10, patches of 2 x 2, 256 tokens, 4 layers of 2 heads) is trained with
softmax; then all its layers attend in another form, with all weights as they are. Rows, columns and
squares are the blocks of the Monarch form on the grid of tokens, T its updates; misaligned blocks
ignore the grid. Nystroem goes through means of runs of tokens, a window sees tokens up to a
distance. all-MiniLM-L6-v2 reads texts of 512 tokens of WikiText-2, with a form in all layers, in
one, or in all but those that suffer most. Fine-tuned models were trained on a few more pictures,
with a tenth of the learning rate.
""".replace("\n", " ").strip()

STUDY = Study(
    name="monarch-conversion",
    title="Monarch attention in trained models",
    question="How much of a trained model is left when Monarch attention takes the place of "
    "softmax without training, and does balance survive in that form?",
    source="Yaras et al., MonarchAttention, NeurIPS 2025, arXiv 2505.18698",
    about=ABOUT,
    sizes=lambda settings: SMOKE if settings.smoke else Sizes(),
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="What is left, over the multiply-adds of attention.",
    seeds=(0,),
)
