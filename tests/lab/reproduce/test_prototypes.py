"""The study of prototypes: views, measures and verdicts are what they say, and it runs."""

import numpy as np
import pytest
import torch
from rich.console import Console

import bistoch
from bistoch.lab.reproduce import prototypes as study
from bistoch.lab.reproduce.prototype_views import (
    EPS,
    TEMPERATURE,
    SwappedPrediction,
    augment,
    clustering_accuracy,
    long_tail,
    mutual_information,
    purity,
)
from bistoch.lab.study import Results, Row, Settings, read_record, run_study

QUIET = Console(quiet=True)


def new_task(**options):
    return SwappedPrediction(
        study.pictures(study.SMOKE), **{"imbalance": 1.0, "lam": 0.9, "iters": 5, **options}
    )


def test_each_view_predicts_the_codes_of_the_other():
    task, output = new_task(), torch.randn(13, 2, 7).mul(0.3).requires_grad_()
    codes = [
        bistoch.prototype_codes(output[:, i].detach(), eps=EPS, lam=0.9, iters=5) for i in (0, 1)
    ]
    log = (output / TEMPERATURE).log_softmax(-1)
    wanted = -(codes[0] * log[:, 1] + codes[1] * log[:, 0]).sum(-1) / 2
    torch.testing.assert_close(task.losses(output, torch.zeros(13)), wanted)


def test_views_differ_and_a_step_draws_them_again():
    task, rows = new_task(), torch.arange(5)
    torch.manual_seed(0)
    first, second = task.batch("train", rows).inputs
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(task.batch("train", rows).inputs[0], first)
    shown = task.batch("test", rows).inputs
    assert torch.equal(shown[0], task.pictures["test"][:5])


def test_a_dark_picture_stays_dark_and_others_stay_in_range():
    assert torch.equal(augment(torch.full((3, 14, 14), -1.0)), torch.full((3, 14, 14), -1.0))
    bright = augment(torch.ones(50, 14, 14))
    assert bright.min() >= -1
    assert bright.mean() > -0.2


def test_the_long_tail_falls_twentyfold():
    labels = np.repeat(np.arange(10), 400)
    counts = np.bincount(labels[long_tail(labels, 20.0)])
    assert counts[0] == 400
    assert counts[-1] == 20
    assert (np.diff(counts) < 0).all()


def test_measures_against_a_known_table():
    found, labels = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 1, 0])
    assert purity(found, labels) == pytest.approx(5 / 6)
    assert clustering_accuracy(found, labels) == pytest.approx(4 / 6)
    # by hand: I = H(labels) - H(labels | found)
    ln = np.log
    found_entropy = -(3 / 6 * ln(3 / 6) + 2 / 6 * ln(2 / 6) + 1 / 6 * ln(1 / 6))
    given = 3 / 6 * -(2 / 3 * ln(2 / 3) + 1 / 3 * ln(1 / 3))
    wanted = 2 * (ln(2) - given) / (ln(2) + found_entropy)
    assert mutual_information(found, labels) == pytest.approx(wanted)


def test_verdicts_can_say_no():
    def checks(used, nmi):
        rows = [
            Row(
                study.cell_name(10, "balanced", target), seed,
                {"prototypes": 10, "classes": "balanced", "target": target, "lam": lam},
                {"test": {"used": used[target], "nmi": nmi[target] + seed / 1000}},
            )
            for target, lam, _ in study.TARGETS
            for seed in range(3)
        ]  # fmt: skip
        return [verdict.holds for verdict in study.checks(Results(rows))]

    names = [target for target, *_ in study.TARGETS]
    good = checks(dict.fromkeys(names, 10) | {"lam 0": 1},
                  dict(zip(names, (0.0, 0.7, 0.8, 0.6, 0.5), strict=True)))  # fmt: skip
    assert good == ["yes"] * 6
    opposite = "no, the opposite"
    bad = checks(dict.fromkeys(names, 5), dict(zip(names, (0.0, 0.3, 0.4, 0.5, 0.6), strict=True)))
    assert bad == ["no", "no", *[opposite] * 4]


def test_the_study_ends_with_a_page_and_resumes(tmp_path, monkeypatch):
    settings = Settings(out=tmp_path, seeds=(0,), smoke=True)
    text = run_study(study.STUDY, settings, QUIET).read_text(encoding="utf-8")
    assert "smoke run" in text
    assert "data:image/png;base64," in text
    results = read_record(tmp_path / "prototypes" / "report.json")
    assert len(results.names) == 10
    for name in results.names:
        found = results.by_seed(name)[0]
        assert 0 <= found["test"]["nmi"] <= 1
        assert 1 <= found["test"]["used"] <= 10

    def fail(*args, **kwargs):
        raise RuntimeError("trained again")

    monkeypatch.setattr(study, "fit", fail)
    run_study(study.STUDY, settings, QUIET)
