"""The study of causal balance: controls are what they say, differences are paired, and it runs."""

import pytest
import torch
from rich.console import Console

import bistoch
from bistoch.lab.reproduce import causal_lm
from bistoch.lab.reproduce.causal_controls import AverageBias, BorrowedBias, StreamedRatio, biases
from bistoch.lab.reproduce.causal_measure import attention, bits
from bistoch.lab.study import Results, Row, Settings, read_record, run_study
from bistoch.models import LanguageConfig, LanguageModel
from bistoch.testing import assert_causal

N, BLOCK = 23, 5
QUIET = Console(quiet=True)


def tokens(batch=3, n=N):
    return torch.randn(3, batch, 2, n, 4, generator=torch.Generator().manual_seed(0)).unbind()


def test_the_own_bias_is_that_of_causal_balance():
    q, k, v = tokens()
    # scores that fall with distance, so that new keys are held back
    q[..., 0], k[..., 0] = -4.0, -torch.arange(N) / 8
    wanted = bistoch.causal_elastic_attention(q, k, v, block=BLOCK)
    torch.testing.assert_close(BorrowedBias(1.0, BLOCK, shift=0)(q, k, v), wanted)
    # the first block gives all it has to its own keys; the second shows what is held back
    fresh = biases(q, k, 1.0, BLOCK)[..., 2 * BLOCK, 2 * BLOCK]
    assert (fresh < 0).any()


def test_another_text_brings_its_bias_and_nothing_else():
    q, k, v = tokens()
    control = BorrowedBias(1.0, BLOCK, shift=1)
    plan = control.plan(q, k)
    bias = biases(q[:1], k[:1], 1.0, BLOCK)
    torch.testing.assert_close(plan[1:2], (q[1:2] @ k[1:2].mT / 2 + bias).softmax(-1))
    torch.testing.assert_close(control(q, k, v), plan @ v)
    # only the bias has a way from one text to another, and no gradient takes it
    q.requires_grad_()
    (slope,) = torch.autograd.grad(control(q, k, v)[1].sum(), q)
    assert not slope[0].any()


def test_the_mean_bias_is_the_mean_of_each_distance():
    q, k, v = tokens()
    control = AverageBias(1.0, BLOCK, heads=2, length=N).train()
    softmax = bistoch.softmax_attention(q, k, v, mask=torch.ones(N, N, dtype=torch.bool).tril())
    # before any batch was counted there is no bias
    torch.testing.assert_close(control(q, k, v), softmax)
    bias = biases(q, k, 1.0, BLOCK)
    found = control.eval().bias(q, k)
    for distance in (0, 7, N - 1):
        wanted = bias.diagonal(-distance, -2, -1).mean((0, 2))
        each = found.diagonal(-distance, -2, -1)
        torch.testing.assert_close(each, wanted[:, None].expand_as(each))
    # further away than any text of training: as the furthest
    longer = control.bias(*tokens(n=N + 4)[:2])
    assert torch.equal(longer[:, -1, 0], longer[:, N - 1, 0])
    before = control.mean.clone()
    control(q, k, v)
    assert torch.equal(control.mean, before)


def test_the_streamed_ratio_by_hand():
    q, k, _ = (x[0, 0].double() for x in tokens())
    scores, place = q @ k.T / 2, torch.arange(N)
    given, fair = torch.zeros(N).double(), torch.zeros(N).double()
    bias, rows = torch.zeros(N).double(), []
    for i in range(N):
        row = (scores[i, : i + 1] + bias[: i + 1]).softmax(-1)
        rows.append(row)
        given[: i + 1] += row
        fair[: i + 1] += 1 / (i + 1)
        if (i + 1) % BLOCK == 0:
            bias = ((fair + 0.01) / (given + 0.01)).log() * (place <= i)
    plan = StreamedRatio(1.0, BLOCK).plan(q, k)
    for i, row in enumerate(rows):
        torch.testing.assert_close(plan[i, : i + 1], row)


@pytest.mark.parametrize(
    "control",
    [BorrowedBias(1.0, 4, 0), BorrowedBias(1.0, 4, 1), StreamedRatio(1.0, 4),
     AverageBias(1.0, 4, 3, 13).eval()],
    ids=["own", "another", "ratio", "distance"],
)  # fmt: skip
def test_controls_hide_the_future(control):
    assert_causal(lambda q, k, v: control(q, k, v), *torch.randn(3, 2, 3, 13, 4).unbind())


def test_bits_are_of_the_same_characters_at_every_length():
    text = torch.arange(101) % 7

    class Even(torch.nn.Module):
        def forward(self, tokens):
            return torch.zeros(*tokens.shape, 8)

    assert bits(Even(), text, 10, 40) == pytest.approx(3.0)
    assert bits(Even(), text, 40, 40) == pytest.approx(3.0)


def test_attention_of_uniform_rows_is_balanced():
    model = LanguageModel(LanguageConfig(vocabulary=7, depth=2, dim=8, heads=2)).eval()
    for block in model.blocks:
        torch.nn.init.zeros_(block.attention.project.weight)
    found = attention(model, torch.randint(7, (3, 16)))
    assert found["overload"] == pytest.approx(1, abs=1e-5)
    assert found["deviation"] == pytest.approx(0, abs=1e-5)
    assert found["first"] == pytest.approx(sum(1 / i for i in range(1, 17)) / 16, abs=1e-5)


def test_lines_of_a_seed_start_from_the_same_weights():
    task = causal_lm.open_text(causal_lm.SMOKE)
    models = {
        line.name: causal_lm.new_model(causal_lm.SMOKE, line, task, 3).state_dict()
        for line in causal_lm.LINES
        if not line.learned_positions
    }
    for state in models.values():
        for name, weight in models["softmax"].items():
            assert torch.equal(state[name], weight)


def test_verdicts_are_by_paired_seeds():
    scores = {
        "softmax": [2.0, 3.0, 4.0], "lam 1": [1.9, 2.91, 3.89], "sink logit": [2.1, 2.9, 4.0],
    }  # fmt: skip
    rows = [
        Row(name, seed, {}, {"bits": {"4": x, "8": x}, "attention": {"4": {"deviation": x}}})
        for name, values in scores.items()
        for seed, x in enumerate(values)
    ]
    found = causal_lm.checks(Results(rows, {"tested": [4, 8]}))
    verdicts = {verdict.claim: verdict.holds for verdict in found}
    assert verdicts["lam 1: fewer bits than softmax"] == "yes"
    assert verdicts["sink logit: fewer bits than softmax"] == "inconclusive"
    assert not any("learned positions" in claim for claim in verdicts)


def test_the_study_ends_with_a_page_and_resumes(tmp_path, monkeypatch):
    few = tuple(line for line in causal_lm.LINES if line.name in (
        "softmax", "lam 1", "lam learned", "control: bias of the distance",
        "control: mass of another text", "learned positions: softmax",
    ))  # fmt: skip
    monkeypatch.setattr(causal_lm, "LINES", few)
    settings = Settings(out=tmp_path, seeds=(0,), smoke=True)
    text = run_study(causal_lm.STUDY, settings, QUIET).read_text(encoding="utf-8")
    assert "smoke run" in text
    assert "data:image/png;base64," in text
    assert "control: mass of another text" in text
    results = read_record(tmp_path / "causal-lm" / "report.json")
    assert causal_lm.lines_of(results) == [line.name for line in few]
    assert set(results.by_seed("softmax")[0]["bits"]) == {"32", "64"}
    assert set(results.by_seed("learned positions: softmax")[0]["bits"]) == {"32"}
    assert results.by_seed("lam learned")[0]["attention"]["32"]["lam"]

    # a second run trains nothing again
    def fail(*args, **kwargs):
        raise RuntimeError("trained again")

    monkeypatch.setattr(causal_lm, "fit", fail)
    run_study(causal_lm.STUDY, settings, QUIET)
    next((tmp_path / "causal-lm" / "cells").glob("lam-1-*.json")).unlink()
    with pytest.raises(RuntimeError, match="trained again"):
        run_study(causal_lm.STUDY, settings, QUIET)
