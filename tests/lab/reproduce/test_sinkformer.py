"""The study of Sinkformers: half-steps, balanced pooling, drift, and verdicts that can say no."""

import pytest
import torch
from rich.console import Console

from bistoch.lab.reproduce import sinkformer
from bistoch.lab.reproduce.sinkformer import FULL, FULL_STUDY, SMOKE, STUDY, TITLES, operator_of
from bistoch.lab.study import Results, Row, Settings, read_record, run_study
from bistoch.models import PRESETS
from bistoch.models.sets import PMA
from bistoch.nn.build import build_operator


@pytest.mark.parametrize("half_steps", [1, 3, 5, 21])
def test_half_steps_are_those_of_the_paper(half_steps):
    scores = 2 * torch.randn(3, 7, 7).double()
    k = scores.exp()
    for step in range(half_steps):
        k = k / k.sum(-1 if step % 2 == 0 else -2, keepdim=True)
    # queries are the scores, keys a unit matrix
    operator = build_operator(operator_of(half_steps), 1, 7)
    keys = torch.eye(7).double().expand(3, 7, 7)
    torch.testing.assert_close(operator.plan(scores * 7**0.5, keys), k)


def test_balanced_pooling_is_pooling_by_the_mean():
    torch.manual_seed(0)
    pool, x = PMA(8, 2, 1, "softmax(eps=1e6)"), 5 * torch.randn(3, 11, 8)
    plan = pool.collect.attention.plan(pool.seeds.expand(3, 1, 8), x)
    torch.testing.assert_close(plan, torch.full_like(plan, 1 / 11), atol=1e-5, rtol=0)


def test_the_full_study_has_the_published_sizes(tmp_path):
    chosen = FULL_STUDY.sizes(Settings(tmp_path))
    assert chosen == FULL
    assert PRESETS[chosen["set"].model].options["dim"] == 256
    assert (chosen["set"].recipe.epochs, chosen["set"].recipe.milestones) == (200, (151,))
    assert (chosen["imdb"].recipe.milestones, chosen["imdb"].length) == ((12,), 512)
    assert chosen["imdb"].train is chosen["set"].test is None
    names = [cell.name for cell in FULL_STUDY.cells(False)]
    assert [f"imdb n_it {count}" in names for count in (1, 3, 5, 21)] == [True] * 4
    shorter = FULL_STUDY.sizes(Settings(tmp_path, epochs=4))
    assert (shorter["set"].recipe.epochs, shorter["set"].recipe.milestones) == (4, (4,))


def results_of(gain, drift):
    """Results in which every cell but softmax gains, and softmax ends at another deviation."""
    rows = []
    for seed in range(3):
        for cell in STUDY.cells(False):
            jitter = 0.001 * seed
            accuracy = 0.8 + jitter + (0 if cell.name.endswith("n_it 1") else gain)
            if cell.options["pooling"] == "mean":
                accuracy -= 0.02
            layers = [[0.3, 0.2], [0.4, 0.3], [0.35 + drift + jitter, 0.25 + drift + jitter]]
            result = {
                "test": {"accuracy": accuracy, "loss": 1.0},
                "drift": {"layers": ["a", "b"], "deviation": layers},
            }
            rows.append(Row(cell.name, seed, cell.options, result))
    return Results(rows)


def test_verdicts_can_say_no():
    def holds(gain, drift):
        return {v.claim: v.holds for v in sinkformer.checks(results_of(gain, drift))}

    more = "Set Transformer: n_it 21 is more accurate than softmax"
    falls = "IMDb encoder: softmax is nearer to balance at the end than before training"
    since = "IMDb encoder: softmax is nearer to balance at the end than after one epoch"
    better = holds(0.05, -0.2)
    assert (better[more], better[falls], better[since]) == ("yes", "yes", "yes")
    worse = holds(-0.05, 0.3)
    assert {worse[name] for name in (more, falls, since)} == {"no, the opposite"}
    # it rose in the first epoch and fell a little afterwards
    mixed = holds(0.0, 0.0)
    assert (mixed[falls], mixed[since]) == ("no, the opposite", "yes")


def test_the_smoke_run_ends_in_a_report_and_resumes(tmp_path, monkeypatch):
    monkeypatch.delenv("BISTOCH_DATA", raising=False)
    settings = Settings(tmp_path, seeds=(0,), smoke=True)
    page = run_study(STUDY, settings, Console(quiet=True))
    results = read_record(page.parent / "report.json")
    assert results.names == [cell.name for cell in STUDY.cells(True)]
    for row in results.rows:
        drift = row.result["drift"]
        # before training and after two epochs
        assert [len(epoch) for epoch in drift["deviation"]] == [len(drift["layers"])] * 3
    assert {row.options["task"] for row in results.rows} == set(SMOKE)
    scores, layers = sinkformer.tables(results)
    assert len(scores.rows) == 7
    assert {row[0] for row in layers.rows} == {TITLES[task] for task in SMOKE}
    monkeypatch.setattr(sinkformer, "train_run", lambda *_: pytest.fail("trained again"))
    run_study(STUDY, settings, Console(quiet=True))
