"""The study of delta attention in a language model."""

import json

import pytest
import torch
from rich.console import Console

from bistoch.lab.reproduce import delta_lm
from bistoch.lab.reproduce.delta_lm import FULL, SMOKE, cells, hide_key, operator_of
from bistoch.lab.reproduce.smollm import make_small_model
from bistoch.lab.study import Settings
from bistoch.lab.study.runner import run_study

pytest.importorskip("transformers")


def test_the_smoke_run_ends_in_a_report(tmp_path):
    settings = Settings(tmp_path, seeds=(0,), smoke=True)
    page = run_study(delta_lm.STUDY, settings, Console(quiet=True)).read_text(encoding="utf-8")
    assert "smoke run" in page
    record = json.loads((tmp_path / "delta-lm" / "report.json").read_text())
    assert len(record["cells"]) == len(cells(smoke=True))


def test_a_model_is_left_as_it_was():
    subject, ids = make_small_model(), torch.arange(60) % 50
    before, _ = subject.losses(ids, None)
    sparse, _ = subject.losses(ids, operator_of("window", SMOKE))
    again, _ = subject.losses(ids, None)
    assert torch.equal(before, again)
    assert not torch.allclose(before[30:], sparse[30:])
    exact, _ = subject.losses(ids, "delta(window=60)")
    torch.testing.assert_close(exact, before)


def test_a_key_is_hidden_at_its_depth():
    ids, answer = hide_key(make_small_model(), 300, 0.5, "12345")
    text = bytes(ids.tolist()).decode()
    assert len(ids) == 300
    assert 80 < text.index("The pass key is 12345") < 180
    assert text.endswith("is 12345")
    assert answer == len(" 12345")


def test_every_method_is_an_operator():
    import bistoch

    names = {cell.options["method"] for cell in cells(smoke=False) if "method" in cell.options}
    for name in names - {"dense"}:
        bistoch.nn.build_operator(operator_of(name, FULL), heads=1)
