"""Studies run, go on after a stop, and judge by rules that can say no."""

import json

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from bistoch.analysis.capture import CapturedPlan
from bistoch.cli import app
from bistoch.lab.reproduce import (
    STUDIES,
    Settings,
    qdsformer,
    rank_decay,
    rank_report,
    sinks,
    sinks_encoder,
    sinks_report,
)
from bistoch.lab.reproduce.network import PARTS, Network, Shape, random_network
from bistoch.lab.reproduce.study import Cells, measure_all
from bistoch.lab.reproduce.switch_task import TaskShape, draw_sequences

QUIET = Console(quiet=True)


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


def tiny(plan):
    shape = Shape(depth=2, dim=8, heads=2, pictures=64, epochs=1)
    if isinstance(plan, rank_decay.Plan):
        return plan._replace(random=shape, trained=shape, product_depth=4, product_size=7)
    return plan._replace(pictures=shape, task=TaskShape(dim=8, steps=2), sequences=3)


@pytest.mark.parametrize("name", ["rank-decay", "sinks"])
def test_a_study_ends_with_a_page_and_goes_on_after_a_stop(name, tmp_path, monkeypatch):
    module = {"rank-decay": rank_decay, "sinks": sinks}[name]
    monkeypatch.setattr(module, "SMOKE", tiny(module.SMOKE))
    monkeypatch.setattr(sinks_encoder, "is_installed", lambda: False)
    settings = Settings(out=tmp_path, seeds=(0,), smoke=True)
    page = STUDIES[name].run(settings, QUIET)
    text = page.read_text(encoding="utf-8")
    assert "smoke run" in text
    assert "data:image/png;base64," in text
    assert "http" not in text.replace("http-equiv", "")
    cells = json.loads((tmp_path / name / "cells.json").read_text())["cells"]

    # a second run measures nothing again
    def fail(*args, **kwargs):
        raise RuntimeError("measured again")

    for measure in ("measure_product", "measure_random", "measure_lookup", "measure_pictures"):
        monkeypatch.setattr(module, measure, fail, raising=False)
    STUDIES[name].run(settings, QUIET)
    # and one cell that is missing is all that is asked for
    whole = json.loads((tmp_path / name / "cells.json").read_text())
    del whole["cells"][next(iter(cells))]
    (tmp_path / name / "cells.json").write_text(json.dumps(whole))
    with pytest.raises(RuntimeError, match="measured again"):
        STUDIES[name].run(settings, QUIET)


def test_a_stopped_run_keeps_what_it_has(tmp_path):
    cells = Cells(tmp_path / "cells.json", {"size": (1, 2)})

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_all([("a", lambda: {"x": 1}), ("b", stop)], cells, QUIET)
    assert Cells(tmp_path / "cells.json", {"size": (1, 2)}).found == {"a": {"x": 1}}
    assert Cells(tmp_path / "cells.json", {"size": (1, 3)}).found == {}
    (tmp_path / "cells.json").write_text("{ half a fi")
    assert Cells(tmp_path / "cells.json", {"size": (1, 2)}).found == {}


def test_parts_can_be_taken_out():
    network = random_network(Shape(depth=1, dim=8, heads=2), "softmax", seed=0)
    block, x = network.blocks[0], torch.randn(2, 28, 8, dtype=torch.float64)
    network.take_out(*PARTS)
    torch.testing.assert_close(block(x), block.attention(x))
    network.take_out("mlp", "norm")
    torch.testing.assert_close(block(x), x + block.attention(x))
    network.take_out("skip", "mlp")
    torch.testing.assert_close(block(x), block.attention(block.norms[0](x)))
    network.take_out()
    y = x + block.attention(block.norms[0](x))
    torch.testing.assert_close(block(x), y + block.mlp(block.norms[1](y)))


def test_training_leaves_random_numbers_alone(tmp_path):
    shape = Shape(depth=1, dim=8, heads=2, pictures=64, epochs=1)
    from bistoch.lab.reproduce.network import trained_network

    before = torch.get_rng_state()
    first, accuracy = trained_network(shape, "softmax", 0, tmp_path)
    again, same = trained_network(shape, "softmax", 0, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert accuracy == same
    assert isinstance(again, Network)
    pairs = zip(first.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_pure_attention_collapses_doubly_exponentially():
    # the order is 3 up to what differs between layers; 1 would be plain exponential decay
    plan = rank_decay.SMOKE._replace(random=Shape(depth=6, dim=16, heads=1), pictures=3)
    for operator in ("softmax", "sinkhorn"):
        found = rank_decay.measure_random(plan, operator, 1.0, PARTS, 0)
        assert 2.3 < rank_report.decay_order(found["residual"]) < 4
        skipped = rank_decay.measure_random(plan, operator, 1.0, ("mlp", "norm"), 0)
        assert skipped["residual"][-1] > 0.05
        assert len(found["sigma_2"]) == 6 == len(found["residual"]) - 1


def curve(kind, operator, without, residual, rank=5.0, scale="2"):
    cell = {"residual": residual, "effective_rank": [rank] * len(residual)}
    return rank_report.Curve(kind, operator, scale, without, [cell])


def test_verdicts_on_rank_can_say_no():
    alone = rank_report.ALONE

    def judge(order, kept, trained, product):
        pure = [0.5, 0.5**order, 0.5**order**2, 0.5**order**3]
        curves = []
        for operator, ours in (("softmax", 0.3), ("sinkhorn", trained)):
            curves += [
                curve("random", operator, alone, pure),
                curve("random", operator, "no mlp norm", [0.5, 0.5, 0.5, kept]),
                curve("trained", operator, "whole", [0.5, ours], rank=10 * ours, scale="1"),
                curve("product", operator, "", [1.0, product if ours != 0.3 else 0.5]),
            ]
        return [verdict.holds for verdict in rank_report.judge(curves)]

    assert judge(order=3, kept=0.4, trained=0.4, product=0.5) == ["yes"] * 4
    assert judge(order=1.2, kept=1e-9, trained=0.2, product=0.3) == ["no"] * 4


def heads(sink, diagonal, drain, rate):
    lists = {"sink": [sink], "diagonal": [diagonal], "drain": [drain]}
    return [{**lists, "sink_rate": rate}]


def test_verdicts_on_sinks_can_say_no():
    def judge(soft, hard):
        found = {("lookup", "softmax"): soft, ("lookup", "sinkhorn"): hard}
        return [verdict.holds for verdict in sinks_report.judge(found)]

    sunk, diagonal = heads(0.9, 0.1, 0.05, 0.9), heads(0.1, 0.9, 1.0, 0.0)
    assert judge(sunk, diagonal) == ["yes", "yes", "yes"]
    assert judge(heads(0.9, 0.1, 1.5, 0.9), sunk) == ["no", "no", "no"]
    assert judge(diagonal, diagonal) == ["no sinks to remove", "no sinks to ask", "no"]


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


@pytest.mark.skipif(not sinks_encoder.is_installed(), reason="the encoder is not installed")
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


def test_seeds_must_differ(tmp_path):
    with pytest.raises(ValueError, match="seeds must be different"):
        Settings(out=tmp_path, seeds=(1, 1))


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
    assert qdsformer.comparison_of(settings).recipe.epochs == 3
    assert settings.command("x") == "bistoch reproduce x --seed 0 --epochs 3"
