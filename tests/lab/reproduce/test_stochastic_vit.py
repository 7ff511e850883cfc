"""The study of Gaussian tokens: what its networks predict, and verdicts that can say no."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from bistoch.lab.reproduce import stochastic_vit
from bistoch.lab.reproduce.stochastic_networks import Trained, probabilities, read_images, task_of
from bistoch.lab.reproduce.stochastic_vit import (
    FULL_STUDY,
    METHODS,
    PUBLISHED,
    SMOKE,
    SOFTMAX,
    STUDY,
    cells,
)
from bistoch.lab.study import Results, Row, Settings, read_record, run_study
from bistoch.models import StochasticViT, ViT

DATA = "fashion-mnist-small"


def network(method):
    torch.manual_seed(0)
    return Trained(read_images(DATA, SMOKE, digits=False), SMOKE, METHODS[method]).eval()


def test_methods_are_the_networks_they_are_called():
    kinds = {method: type(network(method).model) for method in METHODS}
    assert {kind for method, kind in kinds.items() if "Gaussian" in method} == {StochasticViT}
    assert {kind for method, kind in kinds.items() if "Gaussian" not in method} == {ViT}
    assert network("dropout").model.config.dropout == SMOKE.dropout
    assert network("Gaussian, elastic 1, positives").model.config.lam == 1
    # both are given about as many parameters
    wide, gaussian = (
        sum(p.numel() for p in Trained(data, stochastic_vit.Sizes(), METHODS[name]).parameters())
        for data in [read_images(DATA, SMOKE, digits=False)]
        for name in ("wider softmax ViT", "Gaussian, softmax")
    )
    assert 0.9 < wide / gaussian < 1.1


def test_the_loss_of_a_regulariser_is_added():
    data = read_images(DATA, SMOKE, digits=False)
    losses = {}
    for method in ("Gaussian, softmax", PUBLISHED, "Gaussian, softmax, negatives"):
        one = network(method)
        task = task_of(one, data, SMOKE)
        batch = task.batch("train", torch.arange(5))
        losses[method] = task.losses(one(*batch.inputs), batch.target).mean().item()
    assert losses["Gaussian, softmax"] < losses[PUBLISHED]
    assert losses[PUBLISHED] < losses["Gaussian, softmax, negatives"]


def test_ensembles_and_dropout_average_probabilities():
    data = read_images(DATA, SMOKE, digits=False)
    images = data.x_test[:7]
    one, other = network(SOFTMAX), network("wider softmax ViT")
    both = probabilities([one, other], images)
    alone = [probabilities([net], images) for net in (one, other)]
    torch.testing.assert_close(both, torch.stack(alone).mean(0))
    dropped = network("dropout")
    found = [probabilities([dropped], images, samples=3, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert not dropped.training
    torch.testing.assert_close(found[0].sum(-1), torch.ones(7))


def rows(better):
    """Results in which the published method is better, or worse, in every number."""
    made = []
    for seed in range(3):
        for place, method in enumerate(METHODS):
            level = 0.3 + 0.001 * seed + (0.01 * place if better else -0.01 * place)
            numbers = {"accuracy": 0.8, "nll": level, "ece": level, "brier": level}
            result = {
                "test": numbers, "corrupted": numbers, "auroc": level, "parameters": 10,
                "corruptions": {k: [numbers] * 5 for k in stochastic_vit.CORRUPTIONS},
            }  # fmt: skip
            made.append(Row(f"{DATA}: {method}", seed, {"data": DATA, "method": method}, result))
    return Results(made)


def test_verdicts_can_say_no():
    worse = {v.claim.split(": ")[1]: v.holds for v in stochastic_vit.checks(rows(True))}
    better = {v.claim.split(": ")[1]: v.holds for v in stochastic_vit.checks(rows(False))}
    assert len(worse) == len(better) == 22
    claim = f"{PUBLISHED} has a lower ECE than {SOFTMAX}"
    assert (worse[claim], better[claim]) == ("no, the opposite", "yes")
    claim = f"{PUBLISHED} finds digits better than {SOFTMAX}"
    assert (worse[claim], better[claim]) == ("yes", "no, the opposite")


PLAN = "an elastic plan (lam = 1) has a lower {} than a softmax plan of the same tokens"


@pytest.mark.parametrize("number", ["ece", "nll"])
@pytest.mark.parametrize("images", ["test", "corrupted"])
@pytest.mark.parametrize(
    ("claim", "ours", "other"),
    [
        (f"{PUBLISHED} has a lower {{}} than {SOFTMAX}", PUBLISHED, SOFTMAX),
        (f"{PUBLISHED} has a lower {{}} than dropout", PUBLISHED, "dropout"),
        (f"{PUBLISHED} has a lower {{}} than ensemble", PUBLISHED, "ensemble"),
        (PLAN, stochastic_vit.ELASTIC, PUBLISHED),
    ],
)
def test_a_claim_is_decided_by_its_two_methods_and_its_images(claim, ours, other, images, number):
    text = claim.format(number.upper()) + " on corrupted images" * (images == "corrupted")

    def verdict(steps):
        """What is said if this number of our method is so far from that of the other, by seed."""
        made = []
        for row in rows(True).rows:
            result = copy.deepcopy(row.result)
            if row.name == f"{DATA}: {ours}":
                theirs = {r.seed: r.result for r in rows(True).rows if r.name == f"{DATA}: {other}"}
                result[images][number] = theirs[row.seed][images][number] + steps[row.seed]
            made.append(row._replace(result=result))
        found = {v.claim: v.holds for v in stochastic_vit.checks(Results(made))}
        return found[f"{DATA}: {text}"]

    # less than the distance to a third method, so that no other comparison gives these verdicts
    assert verdict((-0.003, -0.004, -0.005)) == "yes"
    assert verdict((0.003, 0.004, 0.005)) == "no, the opposite"
    assert verdict((-0.003, 0.003, 0.001)) == "inconclusive"


def test_the_record_has_the_verdicts_of_the_study():
    path = Path(__file__).parents[3] / "benchmarks" / "lab" / "stochastic-vit.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    found = stochastic_vit.checks(read_record(path))
    assert record["verdicts"] == [verdict._asdict() for verdict in found]
    assert not [verdict.claim for verdict in found if verdict.measured == "not measured"]


def test_the_smoke_run_ends_in_a_report(tmp_path, monkeypatch):
    monkeypatch.delenv("BISTOCH_DATA", raising=False)
    few = (SOFTMAX, "dropout", "ensemble", PUBLISHED)
    monkeypatch.setattr(stochastic_vit, "METHODS", {name: METHODS[name] for name in few})
    monkeypatch.setattr(stochastic_vit, "time_networks", lambda *_: {"seconds": {SOFTMAX: 1.0}})
    monkeypatch.setattr(stochastic_vit, "ELASTIC", PUBLISHED)
    page = run_study(STUDY, Settings(tmp_path, seeds=(0,), smoke=True), Console(quiet=True))
    results = read_record(page.parent / "report.json")
    assert results.names == [*(f"{DATA}: {name}" for name in few), "time"]
    found = results.rows[-2].result
    assert set(found["corruptions"]) == {"noise", "blur", "contrast"}
    assert len(found["corruptions"]["noise"]) == 5
    assert 0 <= found["auroc_variance"] <= 1
    assert np.isfinite(list(found["corrupted"].values())).all()
    # the first network of the ensemble is the one that stood alone
    assert len(list((tmp_path / "networks").glob("*.pt"))) == 1 + 1 + 1 + 1
    assert (page.parent / "figures" / "stochastic-vit.png").read_bytes().startswith(b"\x89PNG")


def test_colour_images_have_fewer_cells():
    names = [cell.name for cell in cells(smoke=False)]
    assert len(names) == len(set(names)) == 9 + 5 + 1


def test_the_full_study_has_all_images_and_methods(tmp_path):
    chosen = FULL_STUDY.sizes(Settings(tmp_path))
    assert (chosen.train, chosen.test, chosen.corrupted) == (60_000, 10_000, 10_000)
    assert chosen.recipe.epochs == FULL_STUDY.epochs == 50
    assert FULL_STUDY.sizes(Settings(tmp_path, epochs=3)).recipe.epochs == 3
    names = {cell.name for cell in FULL_STUDY.cells(False)}
    assert {cell.name for cell in STUDY.cells(False)} < names
    assert len(names) == 2 * len(METHODS) + 1
    # what is recorded keeps its sizes, and so its cells
    assert STUDY.sizes(Settings(tmp_path)).train == 10_000
    assert FULL_STUDY.sizes(Settings(tmp_path, smoke=True)) == SMOKE
