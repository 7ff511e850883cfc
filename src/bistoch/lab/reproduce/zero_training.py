"""Balance swapped into a trained sentence encoder, without any training, and what is left of it.

For several elasticities, in all heads and in the half of the heads that tolerate it best (chosen
on other sentences), the embeddings are compared with those of the model as it is.
"""

import functools
from dataclasses import dataclass
from typing import Any

from torch.nn.functional import cosine_similarity

from bistoch.lab.drawing import PALETTE, QUIET, legend, sheet, tidy
from bistoch.lab.reproduce.encoder import HUB, Encoder, Heads, compare_embeddings, head_places
from bistoch.lab.reproduce.sentences import SETS, load_sentences
from bistoch.lab.study import Cell, Column, Context, Result, Results, Study, Table, Verdict
from bistoch.lab.timing import best_times

STYLES = {"all heads": PALETTE[1], "tolerant half": PALETTE[0], "other half": QUIET}
COLUMNS = (
    Column("cosine", "cosine", ".4f"), Column("lowest", "lowest", ".4f"),
    Column("Spearman", "spearman", ".4f"), Column("neighbour", "neighbour"),
    Column("topic", "topic"),
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Iterations of the operator, rounds of timing, and whose sentences are read."""

    iters: int = 10
    rounds: int = 9
    own_sentences: bool = False
    model: str = HUB


def cells(smoke: bool) -> list[Cell]:
    """Each head alone, then three choices of heads by elasticity, and the time of a swap."""
    lams = (0.0, 0.5, 1.0) if smoke else (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
    alone = [
        Cell(f"head {i}.{head}", {"heads": "one", "layer": i, "head": head})
        for i, head in head_places()
    ]
    swaps = [
        Cell(f"{name}, {heads}, lam {lam:g}", {"set": name, "heads": heads, "lam": lam})
        for name in SETS[smoke]
        for heads in STYLES
        for lam in lams
    ]
    return [*alone, *swaps, Cell("time", {"heads": "timed"})]


def run(cell: Cell, seed: int, context: Context) -> Result:
    """What is left of the embeddings, or how long they take."""
    sizes: Sizes = context.sizes
    heads = cell.options["heads"]
    if heads == "timed":
        return _time(_choosing(sizes.own_sentences, seed), sizes)
    if heads == "one":
        encoder = _choosing(sizes.own_sentences, seed)
        places = {cell.options["layer"]: [cell.options["head"]]}
        after = encoder.embed(f"elastic(lam=1.0, iters={sizes.iters})", places)
        return {"cosine": cosine_similarity(after, encoder.before).mean().item()}
    alone = {
        place: context.result("head {}.{}".format(*place))["cosine"] for place in head_places()
    }
    chosen = choose_half(alone)[heads]
    encoder, topics = _compared(sizes.own_sentences, seed, cell.options["set"])
    after = encoder.embed(f"elastic(lam={cell.options['lam']}, iters={sizes.iters})", chosen)
    return compare_embeddings(encoder.before, after, topics) | {"chosen": chosen}


@functools.cache
def _choosing(own: bool, seed: int) -> Encoder:
    return Encoder([line for some in load_sentences(own, seed) for line in some.choosing])


@functools.cache
def _compared(own: bool, seed: int, name: str) -> tuple[Encoder, list[int] | None]:
    some = next(one for one in load_sentences(own, seed) if one.name == name)
    return Encoder(some.compared), some.topics


def choose_half(alone: dict[tuple[int, int], float]) -> dict[str, Heads | None]:
    """All heads; the half that changes the output least when balanced alone; and the rest.

    >>> choose_half({(0, 0): 0.9, (0, 1): 0.5, (1, 0): 0.8, (1, 1): 0.7})["tolerant half"]
    {0: [0], 1: [0]}
    """
    order = sorted(alone, key=lambda place: -alone[place])
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    tolerant, other = (
        {layer: [h for i, h in sorted(half) if i == layer] for layer, _ in sorted(half)}
        for half in halves
    )
    return {"all heads": None, "tolerant half": tolerant, "other half": other}


def _time(encoder: Encoder, sizes: Sizes) -> Result:
    """Seconds of the model as it is, and over them those of swapped models."""
    swaps = {
        "as it is": None,
        "softmax through the swap": "softmax",
        "elastic, 5 iterations": "elastic(lam=0.5, iters=5)",
        f"elastic, {sizes.iters} iterations": f"elastic(lam=0.5, iters={sizes.iters})",
    }
    calls = {name: functools.partial(encoder.embed, swap) for name, swap in swaps.items()}
    times = best_times(calls, sizes.rounds)
    plain = times["seconds"]["as it is"]
    return times | {"ratios": {name: took / plain for name, took in times["seconds"].items()}}


def tables(results: Results) -> list[Table]:
    """What is left by set of sentences, heads and elasticity; then the time."""
    labels = {"heads": "heads", "lam": "lam"}
    found = [
        results.table(COLUMNS, f"{name}.", names=results.names_with(set=name), labels=labels)
        for name in _sets(results)
    ]
    timed = results.values("time", "ratios")
    rows = [(name, *(f"{one[name]:.2f}" for one in timed)) for name in timed[0]]
    head = ("swap", *(f"seed {seed}" for seed in results.by_seed("time")))
    caption = "Time over that of the model as it is, best of interleaved rounds."
    return [*found, Table(head, rows, caption)]


def checks(results: Results) -> list[Verdict]:
    """Softmax through the swap changes nothing, and the choice of heads carries over."""
    exact = max(
        value for name in results.names_with(lam=0.0)
        for value in results.values(name, "largest_difference")
    )  # fmt: skip
    verdicts = [
        Verdict(
            "lam = 0 leaves every embedding as it is",
            f"no entry differs by more than {exact:.1e}",
            "yes" if exact < 1e-5 else "no",
        )
    ]
    for name in _sets(results):
        left = [
            results.mean(f"{name}, {heads}, lam 1", "cosine")
            for heads in ("tolerant half", "other half")
        ]
        verdicts.append(
            Verdict(
                f"{name}: the half of the heads that was chosen on other sentences tolerates full "
                "balance better than the rest",
                f"cosine {left[0]:.3f} and {left[1]:.3f}",
                "yes" if left[0] > left[1] else "no",
            )
        )
    return verdicts


def figure(results: Results) -> Any:
    """Cosine and rank correlation over lam, one line per choice of heads, one row per set."""
    sets = _sets(results)
    panels = (("cosine", "cosine with the original"), ("spearman", "Spearman of similarities"))
    made, rows_of_axes = sheet(len(sets), 2, width=4.4, height=3.0)
    for line, name in zip(rows_of_axes, sets, strict=True):
        for axes, (metric, label) in zip(line, panels, strict=True):
            for heads, colour in STYLES.items():
                found = results.names_with(set=name, heads=heads)
                lams = [results.options(one)["lam"] for one in found]
                axes.plot(lams, [results.mean(one, metric) for one in found], color=colour,
                          marker="o", markersize=3.5, label=heads)  # fmt: skip
            tidy(axes, f"{name}: {label}", "lam")
    legend(rows_of_axes[0][0])
    return made


def _sets(results: Results) -> list[str]:
    return list(dict.fromkeys(r.options["set"] for r in results.rows if "set" in r.options))


STUDY = Study(
    name="zero-training",
    title="Balance without training",
    question="How much of a trained sentence encoder is left when balance is swapped in?",
    source="this library, on all-MiniLM-L6-v2 (Reimers, Gurevych, EMNLP 2019)",
    about="The elastic operator with ten iterations in place of softmax, with all weights as they "
    "are. Cosine: between the embedding of a sentence and that of the model as it is, mean and "
    "lowest. Spearman: rank correlation of the similarities of all pairs of sentences. Neighbour: "
    "how often the nearest sentence stays the nearest. Topic: how often the nearest sentence has "
    "the topic of the sentence, which does not ask the original model. The tolerant half of the "
    "heads was chosen on other sentences, each head balanced alone.",
    sizes=lambda settings: Sizes(rounds=2, own_sentences=True) if settings.smoke else Sizes(),
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="What is left as lam grows.",
    seeds=(0,),
)
