"""OLinear again: forecasts of several series with a mixer that is swapped under the same rest.

Published is NormLin, a learned matrix whose rows sum to one. Here its columns are balanced too, its
axes are taken from training rows only, and the baselines are trained instead of quoted.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from statistics import mean
from typing import Any

import torch
from torch import nn

from bistoch.lab.drawing import PALETTE, QUIET, RULE, grid, tidy
from bistoch.lab.reproduce.olinear_setup import (
    AS_PUBLISHED,
    AVERAGES,
    BASELINES,
    DLINEAR,
    ITRANSFORMER,
    LONG,
    MIXERS,
    NAMES,
    OLINEAR,
    PUBLISHED_AXES,
    RERUNS,
    SETTINGS,
    WEEKS,
    Numbers,
    Sizes,
    compare_axes,
    errors_on_test,
    make_model,
    open_forecast,
    recipe_of,
)
from bistoch.lab.stats import difference, seeds_of, spread
from bistoch.lab.study import (
    Cell,
    Column,
    Context,
    Result,
    Results,
    Settings,
    Study,
    Table,
    Verdict,
)
from bistoch.lab.train import Ranks, fit
from bistoch.lab.train.seeds import preserved_random_state, seed_all
from bistoch.models import operators
from bistoch.nn import Mixing

NORMLIN, BALANCED, AXES = "NormLin", "balanced NormLin", "axes"
Place = tuple[str, int]
EVERY = (*MIXERS, *BASELINES)
# what is compared at every place, and what else was published as an ablation
PAIR = (NORMLIN, BALANCED, "DLinear", "iTransformer")
ABLATION = (*PAIR, "no mixing", "softmax attention")
# the cells of about three and a half hours on two cores: every model at three places, and all
# horizons whose averages are published, with fewer models where an epoch is long; of Weather, where
# it is longest, one horizon
RECORDED: Mapping[Place, tuple[str, ...]] = {
    ("etth1", 96): (*EVERY, PUBLISHED_AXES, AXES, AS_PUBLISHED),
    ("exchange", 96): EVERY,
    ("illness", 24): EVERY,
    **{("etth1", horizon): ABLATION for horizon in LONG[1:]},
    **{("etth2", horizon): (*PAIR, "no mixing") for horizon in LONG},
    **{(data, horizon): PAIR for data in ("ettm1", "ettm2") for horizon in LONG},
    **{("exchange", horizon): ABLATION for horizon in LONG[1:]},
    **{("illness", horizon): ABLATION for horizon in WEEKS[1:]},
    ("weather", 96): ABLATION,
}
FULL = tuple((data, horizon) for data in SETTINGS for horizon in SETTINGS[data].horizons
             if data != "waves")  # fmt: skip


def name_of(data: str, horizon: int, model: str) -> str:
    """The name of a cell.

    >>> name_of("etth1", 96, "NormLin")
    'ETTh1 96, NormLin'
    """
    return f"{NAMES[data]} {horizon}, {model}"


def cells_of(wanted: Mapping[Place, tuple[str, ...]]) -> list[Cell]:
    """Some models at some places; axes are compared without training, so once."""
    return [
        Cell(
            name_of(data, horizon, model), {"data": data, "horizon": horizon, "model": model},
            seeded=model != AXES,
        )
        for (data, horizon), models in wanted.items() for model in models
    ]  # fmt: skip


def cells(smoke: bool) -> list[Cell]:
    """The cells of a recorded run."""
    return cells_of({("waves", 4): (*EVERY, PUBLISHED_AXES, AXES)} if smoke else RECORDED)


def full_cells(smoke: bool) -> list[Cell]:
    """All data sets and horizons, and the published form in its published width."""
    if smoke:
        return cells(True)
    # elsewhere the published axes are those of the training rows, but for their form
    leaky = (PUBLISHED_AXES, AXES)
    return cells_of({
        (data, horizon): (*EVERY, *(leaky if data.startswith("ett") else ()), AS_PUBLISHED)
        for data, horizon in FULL
    })  # fmt: skip


def sizes(settings: Settings) -> Sizes:
    """The width and the most epochs."""
    if settings.smoke:
        return Sizes(dim=8, epochs=1)
    epochs = settings.epochs
    return Sizes() if epochs is None else Sizes(epochs=epochs, slow_epochs=epochs)


def run(cell: Cell, seed: int, context: Context) -> Result:
    """Train one model, and measure its forecasts on test."""
    data, horizon, model = (cell.options[key] for key in ("data", "horizon", "model"))
    if model == AXES:
        return compare_axes(data, SETTINGS[data].lookback)
    weighted = model not in BASELINES or model.endswith("weighted L1")
    task = open_forecast(data, horizon, weighted=weighted)
    recipe = recipe_of(data, horizon, model, context.sizes)
    with preserved_random_state():
        seed_all("weights", seed)
        network = make_model(data, horizon, model, context.sizes)
    ranks = Ranks(0, 1, context.device)
    fitted = fit(network, task, recipe, folder=context.folder, seed=seed, ranks=ranks,
                 on_step=context.on_step)  # fmt: skip
    return {
        **errors_on_test(network, task, context.device),
        "epochs": len(fitted.curve), "best_epoch": fitted.epoch, "seconds": fitted.seconds,
        "valid": [row["mse"] for row in fitted.curve],
        "parameters": sum(p.numel() for p in network.parameters()),
        **_columns(network),
    }  # fmt: skip


@torch.no_grad()
def _columns(network: nn.Module) -> dict[str, Any]:
    """Of learned matrices: the column sums and the elasticity of every block."""
    found = [one for one in operators(network).values() if isinstance(one, Mixing)]
    sums, lams = [], []
    for mixing in found:
        # a learned matrix looks at no token, but counts them
        tokens = torch.zeros(mixing.tokens or 0, 1)
        sums.append(mixing.plan(tokens, tokens).sum(-2).tolist())
        lams.append(float(mixing.options()["lam"]))
    return {"columns": sums, "lam": lams} if found else {}


def places_of(results: Results) -> list[Place]:
    """The data sets and horizons of a run, in order."""
    return list(dict.fromkeys((r.options["data"], r.options["horizon"]) for r in results.rows))


def relative(
    results: Results, ours: str, base: str, metric: str = "mse", places: list[Place] | None = None
) -> list[float]:
    """Error over that of another model in percent, averaged over places; one number per seed."""
    found: dict[Place, dict[int, float]] = {}
    for place in places_of(results) if places is None else places:
        us, them = (results.by_seed(name_of(*place, model)) for model in (ours, base))
        found[place] = {
            seed: 100 * (us[seed][metric] / them[seed][metric] - 1)
            for seed in sorted(us.keys() & them.keys())
        }
    # places that lack seeds of others are left out, or their means would not be comparable
    most = max(map(len, found.values()), default=0)
    whole = [each for each in found.values() if len(each) == most]
    return [mean(each[seed] for each in whole) for seed in whole[0]] if most else []


def _claim(
    results: Results, text: str, ours: str, base: str, places: list[Place] | None = None
) -> Verdict:
    each = relative(results, ours, base, places=places)
    found = difference(each)
    measured = f"{found.text('.2f')} %, {seeds_of(len(each))}"
    return Verdict(text, measured, found.verdict(larger=False))


def checks(results: Results) -> list[Verdict]:
    """What was claimed or asked, over all data sets and horizons of the run that say so."""
    found = [
        _claim(results, f"{text}: the MSE is lower, on average over the data", ours, base)
        for text, ours, base in (
            ("NormLin against no mixing of channels (published)", NORMLIN, "no mixing"),
            ("NormLin against softmax attention (published)", NORMLIN, "softmax attention"),
            ("balanced NormLin, lam = 1, against NormLin", BALANCED, NORMLIN),
            ("elastic NormLin, lam = 0.5, against NormLin", "elastic NormLin", NORMLIN),
            ("NormLin with a learned lam against NormLin", "learned lam", NORMLIN),
            ("published axes against those of training rows", PUBLISHED_AXES, NORMLIN),
            ("OLinear as published, 512 wide, against 128 wide", AS_PUBLISHED, NORMLIN),
            ("OLinear against DLinear (published)", NORMLIN, "DLinear"),
            ("OLinear against DLinear with the same loss", NORMLIN, "DLinear, weighted L1"),
            ("OLinear against iTransformer (published)", NORMLIN, "iTransformer"),
            ("OLinear against iTransformer with the same loss", NORMLIN,
             "iTransformer, weighted L1"),
        )
        if relative(results, ours, base)
    ]  # fmt: skip
    for (ours, base), data in itertools.product(
        ((BALANCED, NORMLIN), (NORMLIN, "no mixing"), (NORMLIN, "softmax attention")),
        dict.fromkeys(data for data, _ in places_of(results)),
    ):
        places = [
            place for place in places_of(results)
            if place[0] == data and relative(results, ours, base, places=[place])
        ]  # fmt: skip
        if places:
            horizons = ", ".join(str(horizon) for _, horizon in places)
            text = f"{NAMES[data]} {horizons}: {ours} has a lower MSE than {base}"
            found.append(_claim(results, text, ours, base, places))
    return found


def tables(results: Results) -> list[Table]:
    """Beside the published numbers; the mixers; averages over horizons where all are there."""
    found = [published_table(results), mixer_table(results)]
    return [*found, *average_table(results), *axes_table(results)]


def published_table(results: Results) -> Table:
    """MSE / MAE by data set and horizon, ours and published."""
    models: Mapping[str, Numbers] = {
        NORMLIN: OLINEAR, "DLinear": DLINEAR, "iTransformer": ITRANSFORMER,
    }  # fmt: skip
    rows = []
    for data, horizon in places_of(results):
        line = [f"{NAMES[data]} {horizon}"]
        for model, numbers in models.items():
            line.append(_errors(results, name_of(data, horizon, model)))
            known = numbers.get(data)
            line.append(_pair(known[SETTINGS[data].horizons.index(horizon)]) if known else "")
        rows.append(line)
    head = ["data, horizon"]
    for model in ("OLinear", "DLinear", "iTransformer"):
        head += [f"{model} here", f"{model} published"]
    caption = "MSE / MAE on test, mean over seeds. Published: Table 15 of the paper, one seed."
    return Table(head, rows, caption)


def mixer_table(results: Results) -> Table:
    """Every model at every place: errors, and the MSE against that of NormLin."""
    columns = [Column("MSE", "mse", ".4f", compared=True), Column("MAE", "mae", ".4f"),
               Column("best epoch", "best_epoch", ".1f")]  # fmt: skip

    def base(name: str) -> str:
        options = results.options(name)
        return name_of(options["data"], options["horizon"], NORMLIN)

    lams = {
        name: lam_text(results.values(name, "lam"))
        for name in results.names if results.values(name, "lam")
    }  # fmt: skip
    sums = {
        name: f"{mean(max(map(max, found)) for found in results.values(name, 'columns')):.2f}"
        for name in lams
    }
    return results.table(
        columns, "Differences to NormLin, paired by seed, with 95 % intervals. Lam, by block if "
        "it was learned, and largest column sum: of the trained matrices.", baseline=base,
        names=[n for n in results.names if results.options(n).get("model") != AXES],
        more={"lam": lams, "largest column sum": sums},
    )  # fmt: skip


def lam_text(lams: list[list[float]]) -> str:
    """The elasticity by block, mean and deviation over seeds; one number if all are the same.

    >>> lam_text([[0.5, 0.5], [0.5, 0.5]]), lam_text([[0.25, 0.5], [0.75, 0.5]])
    ('0.50', '0.50 ± 0.35, 0.50 ± 0.00')
    """
    if len({lam for seed in lams for lam in seed}) == 1:
        return f"{lams[0][0]:.2f}"
    return ", ".join(spread(block, form=".2f") for block in zip(*lams, strict=True))


def average_table(results: Results) -> list[Table]:
    """MSE / MAE averaged over the four horizons, for data sets that have all."""
    rows = []
    for data in dict.fromkeys(data for data, _ in places_of(results)):
        horizons = [h for d, h in places_of(results) if d == data]
        if len(horizons) < 4 or data not in AVERAGES:
            continue
        line = [NAMES[data]]
        for model in (NORMLIN, BALANCED, "no mixing", "DLinear", "iTransformer"):
            names = [name_of(data, horizon, model) for horizon in horizons]
            is_whole = all(results.by_seed(name) for name in names)
            errors = (mean(results.mean(n, m) for n in names) for m in ("mse", "mae"))
            line.append(_pair(tuple(errors)) if is_whole else "")
        rows.append([*line, _pair(AVERAGES[data]), _pair(RERUNS[data]) if data in RERUNS else ""])
    head = ("data", NORMLIN, BALANCED, "no mixing", "DLinear", "iTransformer", "published",
            "another group's run")  # fmt: skip
    caption = "MSE / MAE, averaged over the four horizons and seeds."
    return [Table(head, rows, caption)] if rows else []


def axes_table(results: Results) -> list[Table]:
    """What axes of training rows and published ones leave of correlations, without training."""
    names = [name for name in results.names if results.options(name).get("model") == AXES]
    columns = [Column("alike", "alike", ".3f"), Column("left by clean axes", "left_clean", ".2%"),
               Column("left by published axes", "left_published", ".2%")]  # fmt: skip
    caption = (
        "Alike: mean absolute cosine of the ten largest axes of both. Left: the share of squared "
        "correlations between the entries of test windows that is not on the diagonal."
    )
    return [results.table(columns, caption, names=names)] if names else []


def _errors(results: Results, name: str) -> str:
    if name not in results.names or not results.by_seed(name):
        return ""
    return _pair((results.mean(name, "mse"), results.mean(name, "mae")))


def _pair(numbers: tuple[float | None, ...]) -> str:
    """Two errors as text.

    >>> _pair((0.36, 0.3821))
    '0.360 / 0.382'
    """
    return " / ".join("" if one is None else f"{one:.3f}" for one in numbers).rstrip(" /")


def figure(results: Results) -> Any:
    """The MSE of every mixer and baseline over that of NormLin, a panel per data set."""
    panels_of: dict[str, list[Place]] = {}
    for place in places_of(results):
        panels_of.setdefault(place[0], []).append(place)
    measured = {results.options(name).get("model") for name in results.names}
    known = (*MIXERS, PUBLISHED_AXES, AS_PUBLISHED, *BASELINES)
    models = [model for model in known if model in measured - {NORMLIN}][::-1]
    made, panels = grid(len(panels_of), 3, width=3.9, height=3.1)
    for axes, (data, places) in zip(panels, panels_of.items(), strict=True):
        for height, model in enumerate(models):
            each = relative(results, model, NORMLIN, places=places)
            if not each:
                continue
            colour = QUIET if model in BASELINES else PALETTE[1 if model == BALANCED else 0]
            axes.plot(each, [height] * len(each), "o", color=colour, markersize=4, alpha=0.55)
            axes.plot([mean(each)] * 2, [height - 0.3, height + 0.3], color=colour, linewidth=2)
        axes.axvline(0, color=RULE, linewidth=1)
        axes.set_yticks(range(len(models)), models)
        axes.set_ylim(-0.6, len(models) - 0.4)
        axes.set_xscale("symlog", linthresh=5)
        axes.set_xticks([-5, 0, 5, 20], ["-5", "0", "5", "20"])
        horizons = ", ".join(str(horizon) for _, horizon in places)
        tidy(axes, f"{NAMES[data]}, {horizons} ahead", "MSE over that of NormLin, %")
        if axes is not panels[0] and len(panels) > 1 and panels.index(axes) % 3:
            axes.set_yticklabels([])
    return made


STUDY = Study(
    name="olinear",
    title="Forecasts with a balanced mixer",
    question="Does a learned matrix that mixes series forecast better if its columns are balanced?",
    source="Yue et al., OLinear, NeurIPS 2025; balance is this library's question",
    about="OLinear with its published settings (reversible normalization, axes without "
    "correlation, an L1 loss that weighs step k by 1 / sqrt(k), Adam, early stopping) and 128 "
    "features instead of 512. The learning rate halves every epoch, so 5 epochs are trained "
    "instead of up to 30, and 10 where it decays slowly. Axes come from the training rows. "
    "Only the mixer changes between models; DLinear and iTransformer are trained with the squared "
    "error, as published, and with the loss of OLinear. Errors are those of the weights with the "
    "lowest MSE on the validation rows, on all test windows.",
    sizes=sizes,
    cells=cells,
    run=run,
    checks=checks,
    tables=tables,
    figure=figure,
    caption="Dots: seeds, averages over the horizons at which a model was trained. Bars: their "
    "means. Left of zero is better than NormLin; the axis is linear up to 5 % and logarithmic "
    "beyond.",
    seeds=(0, 1, 2),
    epochs=5,
)  # fmt: skip
# all data sets and horizons: a day on two cores
FULL_STUDY = replace(
    STUDY, name="olinear-full", title="Forecasts with a balanced mixer, all data sets",
    cells=full_cells,
)  # fmt: skip
