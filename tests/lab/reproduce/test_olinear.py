"""The study of OLinear: axes with and without rows of validation, settings, verdicts, and a run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from bistoch.lab.data import Series
from bistoch.lab.reproduce import STUDIES, olinear
from bistoch.lab.reproduce import olinear_setup as setup
from bistoch.lab.study import Results, Row, Settings, run_study
from bistoch.nn.orthotrans import lag_correlation


@pytest.fixture
def drifting(monkeypatch):
    """A series whose last rows of the first 60 % are not for training."""
    values = np.random.default_rng(0).normal(size=(500, 3)).cumsum(0)
    values[250:] = 5 * np.sin(np.arange(250.0))[:, None] + values[250:] / 9

    def read(name):
        return Series(name, "series", values, np.arange(500), ("a", "b", "c"), "c", (250, 375, 500))

    monkeypatch.setattr(setup, "read_data", read)
    setup.find_axes.cache_clear()
    yield values
    setup.find_axes.cache_clear()


def test_published_axes_have_seen_rows_of_validation_and_clean_ones_have_not(drifting):
    clean, leaky = (setup.find_axes("etth1", 8, published=p).clone() for p in (False, True))
    for axes in (clean, leaky):
        torch.testing.assert_close(axes @ axes.T, torch.eye(8), atol=1e-5, rtol=0)
    setup.find_axes.cache_clear()
    # rows of validation, which are not for training
    drifting[250:300] = np.random.default_rng(1).normal(size=(50, 3))
    assert torch.equal(setup.find_axes("etth1", 8, published=False), clean)
    assert not torch.allclose(setup.find_axes("etth1", 8, published=True), leaky, atol=0.01)


def test_the_published_matrix_divides_by_one_variance_and_the_clean_one_by_both():
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 2)).cumsum(0))
    published, pearson = setup.published_correlation(values, 5, 60), torch.zeros(5, 5)
    wanted = torch.zeros(5, 5, dtype=torch.float64)
    for channel in values.numpy().T:
        windows = np.lib.stride_tricks.sliding_window_view(channel, 5)
        covariance = np.cov(windows.T)
        wanted += torch.from_numpy(covariance / np.diag(covariance)[None]) / 2
        pearson = pearson + torch.from_numpy(np.corrcoef(windows.T)) / 2
    torch.testing.assert_close(published, wanted)
    assert not torch.allclose(published, published.T, atol=1e-3)
    torch.testing.assert_close(lag_correlation(values, 5, train_rows=60), pearson)


def test_axes_are_compared_on_test_rows(drifting):
    found = setup.compare_axes("etth1", 8)
    assert 0 < found["alike"] < 0.99
    assert 0 < found["left_clean"] < 1
    assert found["left_clean"] != found["left_published"]


def test_settings_are_the_published_ones():
    assert [setup.at_horizon(setup.SETTINGS["etth2"].dropout, "etth2", h) for h in (96, 720)] == [
        0.2, 0.3,
    ]  # fmt: skip
    exchange = setup.recipe_of("exchange", 96, "NormLin", setup.Sizes())
    assert (exchange.epochs, exchange.lr, exchange.schedule) == (1, 1e-4, "halving")
    for data, (mse, mae) in list(setup.AVERAGES.items())[:4]:
        found = np.mean(setup.OLINEAR[data], 0)
        # the averages of the paper are those of its own table, as far as three digits tell
        np.testing.assert_allclose(found, (mse, mae), atol=0.0011)


def test_only_the_mixer_differs_between_models():
    made = {}
    for mixer in (*setup.MIXERS, setup.PUBLISHED_AXES):
        torch.manual_seed(0)
        made[mixer] = setup.make_model("waves", 4, mixer, setup.Sizes(dim=8))
    sizes = {name: model.embed.weight for name, model in made.items()}
    assert all(torch.equal(weight, sizes["NormLin"]) for weight in sizes.values())
    assert made["no mixing"].blocks[0].attention is None
    assert made["learned lam"].blocks[0].attention.operator.lam.requires_grad


def rows(errors, horizon=96):
    return [
        Row(olinear.name_of("etth1", horizon, model), seed, {"data": "etth1", "horizon": horizon},
            {"mse": mse, "mae": mse})
        for model, each in errors.items() for seed, mse in enumerate(each)
    ]  # fmt: skip


def test_a_verdict_is_a_paired_interval_of_relative_errors():
    errors = {"NormLin": (1.0, 2.0, 4.0), "balanced NormLin": (0.99, 1.98, 3.95),
              "no mixing": (1.1, 1.9, 4.2)}  # fmt: skip
    results = Results(rows(errors))
    np.testing.assert_allclose(
        olinear.relative(results, "balanced NormLin", "NormLin"), (-1, -1, -1.25)
    )
    said = {v.claim.split(":")[0]: v.holds for v in olinear.checks(results)}
    assert said["balanced NormLin, lam = 1, against NormLin"] == "yes"
    assert said["NormLin against no mixing of channels (published)"] == "inconclusive"
    # what was not measured is not judged
    assert "OLinear against DLinear (published)" not in said


def test_a_place_without_all_seeds_is_left_out_of_an_average():
    lone = [
        Row(olinear.name_of("etth2", 96, model), 0, {"data": "etth2", "horizon": 96}, {"mse": mse})
        for model, mse in (("NormLin", 1.0), ("balanced NormLin", 9.0))
    ]
    results = Results(rows({"NormLin": (1.0, 2.0), "balanced NormLin": (1.1, 2.2)}) + lone)
    np.testing.assert_allclose(olinear.relative(results, "balanced NormLin", "NormLin"), (10, 10))
    one = olinear.relative(results, "balanced NormLin", "NormLin", places=[("etth2", 96)])
    np.testing.assert_allclose(one, [800])


def test_averages_are_over_four_horizons_of_the_models_that_have_all():
    every = {"NormLin": (1.0, 2.0), "balanced NormLin": (1.0, 4.0), "DLinear": (3.0, 3.0)}
    found = [row for horizon in (96, 192, 336, 720) for row in rows(every, horizon)]
    assert olinear.average_table(Results(found[:-6])) == []
    (table,) = olinear.average_table(Results(found + rows({"no mixing": (1.0, 1.0)})))
    line = dict(zip(table[0], table[1][0], strict=True))
    assert line["NormLin"] == "1.500 / 1.500"
    assert line["balanced NormLin"] == "2.500 / 2.500"
    assert line["no mixing"] == line["iTransformer"] == ""
    assert (line["published"], line["another group's run"]) == ("0.424 / 0.424", "0.444 / 0.435")


def test_balance_is_judged_for_every_data_set():
    found = [
        row
        for horizon in (96, 720)
        for row in rows(
            {"NormLin": (1.0, 2.0, 3.0), "balanced NormLin": (0.98, 1.97, 2.94)}, horizon
        )
    ]
    # only the horizons that have both count
    found += rows({"no mixing": (0.9, 1.8, 2.8)}, 720)
    said = {v.claim: v.holds for v in olinear.checks(Results(found))}
    assert said["ETTh1 96, 720: balanced NormLin has a lower MSE than NormLin"] == "yes"
    assert said["ETTh1 720: NormLin has a lower MSE than no mixing"] == "no, the opposite"
    assert not any("has a lower MSE than softmax attention" in claim for claim in said)


def test_the_full_set_has_all_data_sets_and_horizons():
    full = olinear.FULL_STUDY.cells(False)
    assert len({(c.options["data"], c.options["horizon"]) for c in full}) == 7 * 4
    assert len({c.name for c in full}) == len(full)
    recorded = {c.name: c for c in olinear.STUDY.cells(False)}
    assert recorded.items() <= {c.name: c for c in full}.items()
    assert {"olinear", "olinear-full"} <= set(STUDIES)


def test_a_smoke_run_needs_no_file_and_resumes(tmp_path):
    models = ("NormLin", "balanced NormLin", "learned lam", "DLinear", olinear.AXES)
    study = olinear.replace(
        olinear.STUDY, cells=lambda smoke: olinear.cells_of({("waves", 4): models})
    )
    settings = Settings(out=tmp_path, seeds=(0,), smoke=True)
    page = run_study(study, settings, Console(quiet=True))
    assert "smoke run" in page.read_text(encoding="utf-8")

    def fail(*args):
        raise AssertionError("measured again")

    again = run_study(olinear.replace(study, run=fail), settings, Console(quiet=True))
    assert isinstance(again, Path)
