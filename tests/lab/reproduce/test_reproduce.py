"""Studies run on the one runner, and judge by rules that can say no."""

import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from bistoch.analysis.capture import CapturedPlan
from bistoch.cli import app
from bistoch.lab.reproduce import STUDIES, encoder, qdsformer, rank_decay, sinks
from bistoch.lab.reproduce.ablation import PARTS, Shape, random_network
from bistoch.lab.reproduce.lookup import TaskShape, draw_sequences
from bistoch.lab.study import Results, Row, Settings, run_study

QUIET = Console(quiet=True)
TINY = Shape(depth=2, dim=8, heads=2, pictures=64, epochs=1)


def run(*words):
    return CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(app, list(words))


def test_all_studies_are_listed():
    result = run("reproduce")
    assert result.exit_code == 0
    for study in STUDIES.values():
        assert study.name in result.stdout
        assert study.source in result.stdout


def test_an_unknown_study_is_one_sentence(tmp_path):
    result = run("reproduce", "rank", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "unknown study 'rank'; known are rank-decay, sinks" in result.stderr


def test_epochs_belong_to_studies_that_have_them(tmp_path):
    for words, sentence in (
        (("sinks", "--epochs", 3), "sinks does not train by epochs"),
        (("qdsformer-fashion", "--smoke", "--epochs", 3), "a smoke run has epochs of its own"),
        (("qdsformer-fashion", "--seed", 1, "--seed", 1), "seeds must be different"),
    ):
        refused = run("reproduce", *map(str, words), "--out", str(tmp_path / "out"))
        assert refused.exit_code == 2
        assert sentence in refused.stderr
        assert not (tmp_path / "out").exists()
    settings = Settings(out=tmp_path, seeds=(0,), epochs=3)
    assert qdsformer.sizes(settings).recipe.epochs == 3


@pytest.mark.parametrize(
    ("module", "small"),
    [
        (rank_decay, replace(rank_decay.SMOKE, random=TINY, trained=TINY, product_depth=4)),
        (sinks, sinks.Sizes(TINY, TaskShape(dim=8, steps=2), 3)),
    ],
    ids=["rank-decay", "sinks"],
)
def test_a_study_ends_with_a_page_and_resumes(module, small, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SMOKE", small)
    monkeypatch.setattr(sinks, "is_installed", lambda: False)
    study, settings = module.STUDY, Settings(out=tmp_path, seeds=(0,), smoke=True)
    text = run_study(study, settings, QUIET).read_text(encoding="utf-8")
    assert "smoke run" in text
    assert "data:image/png;base64," in text
    assert "http" not in text.replace("http-equiv", "")
    record = json.loads((tmp_path / study.name / "report.json").read_text())
    assert len(record["cells"]) == len(study.cells(True))

    def fail(*args):
        raise RuntimeError("measured again")

    # a second run measures nothing; one cell that is missing is measured
    again = replace(study, run=fail)
    run_study(again, settings, QUIET)
    next((tmp_path / study.name / "cells").glob("*.json")).unlink()
    with pytest.raises(RuntimeError, match="measured again"):
        run_study(again, settings, QUIET)


def test_parts_can_be_removed():
    network = random_network(Shape(depth=1, dim=8, heads=2), "softmax", seed=0)
    block, x = network.blocks[0], torch.randn(2, 28, 8, dtype=torch.float64)
    network.remove(*PARTS)
    torch.testing.assert_close(block(x), block.attention(x))
    network.remove("mlp", "norm")
    torch.testing.assert_close(block(x), x + block.attention(x))
    network.remove("skip", "mlp")
    torch.testing.assert_close(block(x), block.attention(block.norms[0](x)))
    network.remove()
    y = x + block.attention(block.norms[0](x))
    torch.testing.assert_close(block(x), y + block.mlp(block.norms[1](y)))


def test_pure_attention_collapses_doubly_exponentially():
    # the order is 3 up to what differs between layers; 1 would be plain exponential decay
    sizes = replace(rank_decay.SMOKE, random=Shape(depth=6, dim=16, heads=1), pictures=3)
    for operator in ("softmax", "sinkhorn"):
        found = rank_decay.measure_random(sizes, operator, 1.0, PARTS, 0)
        assert 2.3 < rank_decay.decay_order(found["residual"]) < 4
        skipped = rank_decay.measure_random(sizes, operator, 1.0, ("mlp", "norm"), 0)
        assert skipped["residual"][-1] > 0.05
        assert len(found["sigma_2"]) == 6 == len(found["residual"]) - 1


def test_verdicts_on_rank_can_say_no():
    def checks(order, kept, trained, product):
        pure = [0.5, 0.5**order, 0.5**order**2, 0.5**order**3]
        rows = []
        for operator, ours in (("softmax", 0.3), ("sinkhorn", trained)):
            for seed in (0, 1, 2):
                for kind, scale, parts, residual in (
                    ("random", 2.0, PARTS, pure),
                    ("random", 2.0, ("mlp", "norm"), [0.5, 0.5, 0.5, kept]),
                    ("trained", 1.0, (), [0.5, ours + seed / 1000]),
                    ("product", 2.0, None, [1.0, 0.5 if operator == "softmax" else product]),
                ):
                    cell = rank_decay._cell(kind, operator, scale, parts)
                    ranks = [10 * value for value in residual]
                    result = {"residual": residual, "effective_rank": ranks}
                    rows.append(Row(cell.name, seed, cell.options, result))
        return [verdict.holds for verdict in rank_decay.checks(Results(rows))]

    assert checks(order=3, kept=0.4, trained=0.4, product=0.5) == ["yes"] * 5
    opposite = ["no, the opposite"] * 2
    assert checks(order=1.2, kept=1e-9, trained=0.2, product=0.3) == ["no", "no", *opposite, "no"]


def test_verdicts_on_sinks_can_say_no():
    def heads(sink, diagonal, drain, rate):
        return {"sink": [sink], "diagonal": [diagonal], "drain": [drain], "sink_rate": rate}

    def checks(soft, hard):
        pairs = (("softmax", soft), ("sinkhorn", hard))
        rows = [
            Row(f"lookup/{name}", 0, {"task": "lookup", "operator": name}, result)
            for name, result in pairs
        ]
        return [verdict.holds for verdict in sinks.checks(Results(rows))]

    sunk, diagonal = heads(0.9, 0.1, 0.05, 0.9), heads(0.1, 0.9, 1.0, 0.0)
    assert checks(sunk, diagonal) == ["yes", "yes", "yes"]
    assert checks(heads(0.9, 0.1, 1.5, 0.9), sunk) == ["no", "no", "no"]
    assert checks(diagonal, diagonal) == ["inconclusive", "inconclusive", "no"]


def test_heads_of_a_captured_model():
    n, first = 8, torch.zeros(8, 8)
    first[:, 0] = 1
    plan = torch.stack([first, torch.eye(n), torch.full((n, n), 1 / n)]).expand(5, 3, n, n)
    value = torch.ones(5, 3, n, 4)
    value[..., 0, :] = 0
    found = sinks.measure_heads([CapturedPlan("layer", 0, "sdpa", plan, value)])
    assert found["sink"] == pytest.approx([1, 1 / 8, 1 / 8])
    assert found["diagonal"] == pytest.approx([1 / 8, 1, 1 / 8])
    assert found["off"] == pytest.approx([1, 1 / 8, 0])
    assert found["drain"][0] == 0
    assert found["sink_rate"] == pytest.approx(1 / 3)
    assert found["sink_place"] == 0
    causal = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
    seen = [CapturedPlan("layer", 0, "sdpa", causal.expand(2, 1, n, n), None)]
    assert sinks.measure_heads(seen, causal=True)["drain"] == []


@pytest.mark.skipif(not encoder.is_installed(), reason="the encoder is not installed")
def test_balance_removes_the_sinks_of_a_trained_encoder():
    soft = sinks.measure_encoder("softmax", smoke=True)
    hard = sinks.measure_encoder("sinkhorn", smoke=True)
    assert soft["right"] == pytest.approx(1, abs=1e-5)
    assert len(soft["sink"]) == len(hard["sink"]) == 72
    assert soft["sink_rate"] > 0.2
    assert hard["sink_rate"] < 0.1 * soft["sink_rate"]


def test_the_task_asks_one_token_for_one_word():
    tokens, wanted = draw_sequences(TaskShape(), 50, torch.Generator().manual_seed(0))
    words, (first, asker, answer) = tokens[..., :-3], tokens[..., -3:].unbind(-1)
    assert (asker.sum(-1) == 1).all()
    assert (answer.sum(-1) == 1).all()
    assert (asker * answer).sum() == 0
    assert (first.sum(-1) == 1).all()
    assert torch.equal((wanted * asker[..., None]).sum(1), (words * answer[..., None]).sum(1))
    assert (wanted * (1 - asker[..., None])).abs().sum() == 0
