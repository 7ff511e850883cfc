"""What the pages on models show: studies of trained networks, from their records or made anew."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from making.drawing import DOCS, decorate, put_table, save
from matplotlib.figure import Figure
from rich.console import Console

from bistoch.lab.reproduce import causal_lm as causal_study
from bistoch.lab.reproduce import cooccurrence as cooccurrence_study
from bistoch.lab.reproduce import delta_lm as delta_study
from bistoch.lab.reproduce import hubs as hubs_study
from bistoch.lab.reproduce import monarch_conversion as monarch_study
from bistoch.lab.reproduce import olinear as olinear_study
from bistoch.lab.reproduce import prototypes as prototype_study
from bistoch.lab.reproduce import rank_decay as rank_study
from bistoch.lab.reproduce import retrieval as retrieval_study
from bistoch.lab.reproduce import router as router_study
from bistoch.lab.reproduce import sinkformer as sinkformer_study
from bistoch.lab.reproduce import sinks
from bistoch.lab.reproduce import stochastic_vit as gaussian_study
from bistoch.lab.reproduce import zero_training as zero_study
from bistoch.lab.reproduce.ablation import COLOURS, LAMS, PARTS
from bistoch.lab.study import Settings, read_record
from bistoch.lab.study.runner import Runner

SCALES = (1.0, 2.0, 4.0)
RECORDS = DOCS.parent / "benchmarks" / "lab"


def zero_training() -> None:
    """Balance swapped into a trained encoder; the study takes minutes, so its record is read."""
    results = read_record(RECORDS / "zero-training.json")
    save(zero_study.figure(results), "zero_training")
    put_table("huggingface.md", "zero_training", *zero_study.tables(results)[0][:2])


def causal_lm() -> None:
    """Causal balance in a language model; the study takes an hour, so its record is read."""
    results = read_record(RECORDS / "causal-lm.json")
    save(causal_study.figure(results), "causal_lm")
    scores, attention, *_ = causal_study.tables(results)
    for name, (heads, rows, *_) in {
        "causal_lm_bits": scores,
        "causal_lm_attention": attention,
        "causal_lm_verdicts": (("asked", "measured", "holds"), causal_study.checks(results)),
        "causal_lm_oracle": causal_study.oracle_table(results),
        "causal_lm_lam": causal_study.lam_table(results),
    }.items():
        put_table("causal_lm.md", name, heads, rows)


def delta_lm() -> None:
    """Delta attention in a pretrained language model; from the record of the study."""
    results = read_record(RECORDS / "delta-lm.json")
    save(delta_study.figure(results), "delta_lm")
    names = (
        "delta_lm_0", "delta_lm_1", "delta_lm_2", "delta_lm_3", "delta_lm_4", "delta_lm_5",
    )  # fmt: skip
    for name, table in zip(names, delta_study.tables(results), strict=True):
        put_table("delta_lm.md", name, *table[:2])
    asked = delta_study.checks(results)
    put_table("delta_lm.md", "delta_lm_verdicts", ("asked", "measured", "holds"), asked)


def delta_time() -> None:
    """Times of delta attention and of decoding, from their records."""
    found = json.loads((RECORDS.parent / "delta.json").read_text())["lengths"]
    rows = [
        [n, *(f"{one[x]:.2f}" if x in one else "" for x in ("forward", "with backward"))]
        for n, one in found.items()
    ]
    put_table("operators/delta.md", "delta_time", ("n", "forward", "with the backward"), rows)
    found = json.loads((RECORDS.parent / "decode.json").read_text())
    rows = [[f"one token after {n}", f"{one['ratio']:.2f}"] for n, one in found["decode"].items()]
    rows += [[f"prefill of {n}", f"{one['ratio']:.2f}"] for n, one in found["prefill"].items()]
    put_table("huggingface.md", "decode", ("what", "time over the model's own"), rows)


def delta_variants() -> None:
    """Variants of delta attention that were left out, from their record."""
    found = json.loads((RECORDS.parent / "delta-variants.json").read_text())
    errors, heads, rows = found["errors"], [one["errors"] for one in found["heads"]], []
    places = {"every 16th": "", "by the query": ", by query", "by the delta": ", by delta"}
    for label, suffix in (places | {"the best in hindsight": ", hindsight"}).items():
        many = ", every 16th" if suffix in ("", ", hindsight") else suffix
        row = [label, f"{found['dense rows'][many]:.0f}"]
        for method in ("recompute", "delta", "mass"):
            closer = sum(one[method + suffix] < one[method] for one in heads)
            beside = f" ({closer} of {len(heads)})" if suffix else ""
            row.append(f"{errors[method + suffix]:.3f}{beside}")
        rows.append([*row, "" if suffix else f"{errors['mass, same share']:.3f}"])
    rows.insert(0, ["none: window alone", "0", f"{errors['window']:.3f}", "", "", ""])
    names = ["dense rows", "how many", "recompute", "delta", "mass", "mass, same share"]
    put_table("operators/delta.md", "delta_variants", names, rows)
    balance, names = found["balance"], ["plan"]
    for lam in balance:
        names += [f"columns, lam = {lam}", "to causal_elastic", "to full attention"]
    some = next(iter(balance.values()))
    rows = [[x, *(f"{y:.3f}" for one in balance.values() for y in one[x])] for x in some]
    put_table("operators/delta.md", "delta_balance", names, rows)


def prototypes() -> None:
    """Self-labelling with several codes; from the record of the study."""
    results = read_record(RECORDS / "prototypes.json")
    save(prototype_study.figure(results), "prototypes")
    names = ("prototypes_ten_balanced", "prototypes_ten_tail")
    names += ("prototypes_thirty_balanced", "prototypes_thirty_tail")
    for name, table in zip(names, prototype_study.tables(results), strict=True):
        put_table("prototypes.md", name, *table[:2])
    asked = prototype_study.checks(results)
    put_table("prototypes.md", "prototypes_verdicts", ("asked", "measured", "holds"), asked)


def cooccurrence() -> None:
    """Two words that occur together; from the record of the study."""
    results = read_record(RECORDS / "cooccurrence.json")
    save(cooccurrence_study.figure(results), "cooccurrence")
    names = ("cooccurrence_operators", "cooccurrence_rates")
    for name, table in zip(names, cooccurrence_study.tables(results), strict=True):
        put_table("cooccurrence.md", name, *table[:2])
    asked = cooccurrence_study.checks(results)
    put_table("cooccurrence.md", "cooccurrence_verdicts", ("asked", "measured", "holds"), asked)


def monarch_conversion() -> None:
    """Monarch attention in trained models; from the record of the study."""
    results = read_record(RECORDS / "monarch-conversion.json")
    save(monarch_study.figure(results), "monarch_conversion")
    pictures, texts, scratch = monarch_study.tables(results)
    for name, (head, rows, *_) in {
        "monarch_pictures": pictures,
        "monarch_texts": texts,
        "monarch_scratch": scratch,
        "monarch_verdicts": (("asked", "measured", "holds"), monarch_study.checks(results)),
    }.items():
        put_table("monarch_conversion.md", name, head, rows)


def olinear() -> None:
    """Forecasts with swapped mixers; from the record of the study."""
    results = read_record(RECORDS / "olinear.json")
    save(olinear_study.figure(results), "olinear")
    asked = olinear_study.checks(results)
    put_table("olinear.md", "olinear_verdicts", ("asked", "measured", "holds"), asked)
    put_table("olinear.md", "olinear_published", *olinear_study.published_table(results)[:2])
    (averages,) = olinear_study.average_table(results)
    put_table("olinear.md", "olinear_averages", *averages[:2])
    put_table("olinear.md", "olinear_mixers", *olinear_study.mixer_table(results)[:2])
    (axes,) = olinear_study.axes_table(results)
    put_table("olinear.md", "olinear_axes", *axes[:2])


def sinkformer() -> None:
    """Half-steps, pooling and drift; from the record of the study."""
    results = read_record(RECORDS / "sinkformer.json")
    save(sinkformer_study.figure(results), "sinkformer")
    for name, table in zip(
        ("sinkformer_scores", "sinkformer_layers"), sinkformer_study.tables(results), strict=True
    ):
        put_table("sinkformer.md", name, *table[:2])
    asked = sinkformer_study.checks(results)
    put_table("sinkformer.md", "sinkformer_verdicts", ("asked", "measured", "holds"), asked)


def stochastic_vit() -> None:
    """Calibration of Gaussian tokens; from the record of the study."""
    results = read_record(RECORDS / "stochastic-vit.json")
    save(gaussian_study.figure(results), "stochastic_vit")
    names = ("stochastic_vit_fashion", "stochastic_vit_fashion_corrupted")
    names += ("stochastic_vit_cifar", "stochastic_vit_cifar_corrupted")
    for name, table in zip(names, gaussian_study.tables(results), strict=True):
        put_table("stochastic_vit.md", name, *table[:2])
    asked = gaussian_study.checks(results)
    put_table("stochastic_vit.md", "stochastic_vit_verdicts", ("asked", "measured", "holds"), asked)


def router() -> None:
    """Routers in a language model; from the record of the study."""
    results = read_record(RECORDS / "router.json")
    save(router_study.figure(results), "router")
    put_table("routing.md", "router_loads", *router_study.tables(results)[0][:2])
    asked = router_study.checks(results)
    put_table("routing.md", "router_verdicts", ("asked", "measured", "holds"), asked)


def retrieval() -> None:
    """Search with a bias per document; the study takes ten minutes, so its record is read."""
    results = read_record(RECORDS / "retrieval.json")
    save(retrieval_study.figure(results), "retrieval")
    for name, table in {
        "retrieval_recall": retrieval_study.recall_table(results),
        "retrieval_rules": retrieval_study.rule_table(results),
    }.items():
        put_table("retrieval.md", name, *table[:2])
    verdicts = [v for v in retrieval_study.checks(results) if "best simple method" in v.claim]
    rows = [(v.claim, v.measured.removesuffix(", 1 seed"), v.holds) for v in verdicts]
    put_table("retrieval.md", "retrieval_verdicts", ("claim", "measured", "holds"), rows)


def hubs() -> None:
    """Planted hub documents, from the record."""
    results = read_record(RECORDS / "hubs.json")
    save(hubs_study.figure(results), "hubs")
    rows = []
    for source, table in zip(
        hubs_study.sources_of(results), hubs_study.tables(results), strict=True
    ):
        shown = [row for row in table.rows if (row[0], row[1]) in ((0, "0%"), (10, "0%"))]
        rows += [[source, *map(str, (row[0], *row[2:]))] for row in shown]
    head = ("search", *(word for word in table.head if word != "seen"))
    put_table("retrieval.md", "hubs", head, rows)


def rank_decay() -> None:
    """What depth leaves of the differences between tokens, before any training."""
    study = replace(rank_study.FULL, pictures=4)
    panels = (
        ("products of independent plans", lambda name: ("product", name)),
        ("attention alone", lambda name: ("alone", name)),
        ("attention with skips", lambda name: ("skip", name)),
    )
    curves = {}
    for name in LAMS:
        curves["product", name] = rank_study.measure_product(study, name, 2.0, 0)
        curves["alone", name] = rank_study.measure_random(study, name, 2.0, PARTS, 0)
        curves["skip", name] = rank_study.measure_random(study, name, 2.0, ("mlp", "norm"), 0)
    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    for axes, (title, key) in zip(figure.subplots(1, 3), panels, strict=True):
        for name, colour in COLOURS.items():
            axes.plot(curves[key(name)]["residual"], color=colour, label=name)
        axes.set(yscale="log")
        decorate(axes, title, "layers", "residual to rank one" if key("")[0] == "product" else "")
    figure.axes[0].legend(fontsize=8, frameon=False)
    save(figure, "rank_decay")
    rows = []
    for name in LAMS:
        left = []
        for scale in SCALES:
            residual = rank_study.measure_product(study, name, scale, 0)["residual"]
            left.append((residual[-1] / residual[0]) ** (1 / study.product_depth))
        alone = curves["alone", name]["residual"]
        rows.append(
            [
                name,
                f"{rank_study.decay_order(alone):.1f}",
                f"{alone[3]:.1e}",
                f"{curves['skip', name]['residual'][-1]:.3f}",
                *(f"{one:.3f}" for one in left),
            ]
        )
    heads = ["operator", "order of the decay", "alone, 3 layers", "with skips, 12 layers"]
    heads += [f"product, scale {scale:g}" for scale in SCALES]
    put_table("analysis.md", "decay", heads, rows)


def encoder_sinks() -> None:
    """The heads of a trained sentence encoder, before and after balance, without training."""
    rows = []
    for name in LAMS:
        found = sinks.measure_encoder(name, smoke=False)
        heads = len(found["diagonal"])
        rows.append(
            [
                name,
                f"{found['sink_rate']:.0%}",
                *(
                    f"{sum(found[one]) / heads:.2f}"
                    for one in ("sink", "diagonal", "drain", "gini")
                ),
                f"{sum(one > 0.5 for one in found['diagonal'])} of {heads}",
                f"{found['right']:.3f}",
            ]
        )
    heads = ["operator", "sink rate", "strongest sink", "diagonal", "value of the sink"]
    heads += ["gini of columns", "diagonal heads", "cosine with softmax"]
    put_table("analysis.md", "encoder_sinks", heads, rows)


def lookup_sinks() -> None:
    """Networks trained on the task that needs a switch: where their only head looks."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(sinks.STUDY, Settings(Path(folder), seeds=(0,)), Console(quiet=True))
        for name in LAMS:
            found = runner.value(runner.cells[f"lookup/{name}"], 0)["result"]
            numbers = [found["sink_rate"], *(found[one][0] for one in ("sink", "diagonal"))]
            rows.append([name, f"{found['right']:.3f}", *(f"{one:.2f}" for one in numbers)])
    heads = ["operator", "explained", "sink rate", "strongest sink", "diagonal"]
    put_table("analysis.md", "lookup_sinks", heads, rows)
