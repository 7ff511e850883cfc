"""What the pages on models show: studies of trained networks, from their records or made anew."""

import json
import tempfile
from pathlib import Path

from making.drawing import DOCS, decorate, put_table, save
from matplotlib.figure import Figure

from bistoch.lab.reproduce import rank_decay as rank_study
from bistoch.lab.reproduce.causal_lm import report as causal_report
from bistoch.lab.reproduce.causal_lm import summary as causal_summary
from bistoch.lab.reproduce.network import LAMS, PARTS
from bistoch.lab.reproduce.rank_report import decay_order
from bistoch.lab.reproduce.sinks import FULL as SINKS
from bistoch.lab.reproduce.sinks import measure_encoder, measure_lookup
from bistoch.lab.reproduce.telling import COLOURS
from bistoch.lab.reproduce.zero_training.page import HEAD, draw, table_rows


def zero_training() -> None:
    """Balance swapped into a trained encoder; the study takes minutes, so its record is read."""
    record = DOCS.parent / "benchmarks" / "zero-training.json"
    found = json.loads(record.read_text(encoding="utf-8"))
    save(draw(found), "zero_training")
    put_table("huggingface.md", "zero_training", HEAD, table_rows(found, "AG News"))


def causal_lm() -> None:
    """Causal balance in a language model; the study takes an hour, so its record is read."""
    record = DOCS.parent / "benchmarks" / "causal-lm.json"
    found = json.loads(record.read_text(encoding="utf-8"))
    save(causal_report.draw(found), "causal_lm")
    for name, (heads, rows) in {
        "causal_lm_bits": causal_summary.score_table(found),
        "causal_lm_attention": causal_summary.look_table(found, found["plan"]["tested"][0]),
        "causal_lm_verdicts": (("asked", "measured", "holds"), causal_summary.judge(found)),
        "causal_lm_oracle": causal_summary.oracle_table(found),
        "causal_lm_lam": causal_summary.lam_table(found),
    }.items():
        put_table("causal_lm.md", name, heads, rows)


def rank_decay() -> None:
    """What depth leaves of the differences between tokens, before any training."""
    study = rank_study.FULL._replace(pictures=4)
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
        for scale in study.scales:
            residual = rank_study.measure_product(study, name, scale, 0)["residual"]
            left.append((residual[-1] / residual[0]) ** (1 / study.product_depth))
        alone = curves["alone", name]["residual"]
        rows.append(
            [
                name,
                f"{decay_order(alone):.1f}",
                f"{alone[3]:.1e}",
                f"{curves['skip', name]['residual'][-1]:.3f}",
                *(f"{one:.3f}" for one in left),
            ]
        )
    heads = ["operator", "order of the decay", "alone, 3 layers", "with skips, 12 layers"]
    heads += [f"product, scale {scale:g}" for scale in study.scales]
    put_table("analysis.md", "decay", heads, rows)


def encoder_sinks() -> None:
    """The heads of a trained sentence encoder, before and after balance, without training."""
    rows = []
    for name in LAMS:
        found = measure_encoder(name, smoke=False)
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
        for name in LAMS:
            found = measure_lookup(SINKS, name, 0, Path(folder))
            numbers = [found["sink_rate"], *(found[one][0] for one in ("sink", "diagonal"))]
            rows.append([name, f"{found['right']:.3f}", *(f"{one:.2f}" for one in numbers)])
    heads = ["operator", "explained", "sink rate", "strongest sink", "diagonal"]
    put_table("analysis.md", "lookup_sinks", heads, rows)
