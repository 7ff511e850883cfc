"""The study of causal balance: controls are what they say, differences are paired, and it runs."""

import dataclasses
import json

import pytest
import torch
from rich.console import Console

import bistoch
from bistoch.lab.compare.difference import Difference
from bistoch.lab.reproduce import STUDIES, Settings
from bistoch.lab.reproduce.causal_lm import plan as plans
from bistoch.lab.reproduce.causal_lm import run as running
from bistoch.lab.reproduce.causal_lm.controls import (
    AverageBias,
    BorrowedBias,
    StreamedRatio,
    biases,
)
from bistoch.lab.reproduce.causal_lm.measure import attention, bits
from bistoch.lab.reproduce.causal_lm.summary import judge, paired
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
    task = plans.open_text(plans.SMOKE)
    models = {
        line.name: plans.new_model(plans.SMOKE, line, task, 3).state_dict()
        for line in plans.LINES
        if not line.learned_places
    }
    for state in models.values():
        for name, weight in models["softmax"].items():
            assert torch.equal(state[name], weight)


def made(**bits_of):
    rows = [
        {"name": name.replace("_", " "), "seed": seed, "bits": {"4": value, "8": value},
         "attention": {"4": {"early": value, "deviation": value}}}
        for name, values in bits_of.items() for seed, value in enumerate(values)
    ]  # fmt: skip
    return {"rows": rows, "plan": {"tested": [4, 8]}}


def test_differences_are_seed_by_seed():
    found = made(softmax=[2.0, 3.0, 4.0], lam_1=[1.9, 2.91, 3.89], sink_logit=[2.1, 2.9, 4.0])
    less = paired(found, "lam 1", "softmax", lambda row: row["bits"]["4"])
    assert less.each == pytest.approx((-0.1, -0.09, -0.11))
    # the spread of the seeds is large, that of the differences is not
    assert less.judge() == "yes"
    verdicts = {verdict.claim: verdict.holds for verdict in judge(found)}
    assert verdicts["lam 1: fewer bits than softmax"] == "yes"
    assert verdicts["sink logit: fewer bits than softmax"] == "not to be told"
    assert Difference((0.1, 0.11, 0.09)).judge() == "no, the opposite"
    assert Difference((-0.1,)).judge() == "not to be told"


def test_the_study_ends_with_a_page_and_goes_on_after_a_stop(tmp_path, monkeypatch):
    few = tuple(line for line in plans.LINES if line.name in (
        "softmax", "lam 1", "lam learned", "control: bias of the distance",
        "control: mass of another text", "learned places: softmax",
    ))  # fmt: skip
    monkeypatch.setattr(running, "SMOKE", dataclasses.replace(plans.SMOKE, lines=few))
    monkeypatch.setattr(running, "ROUNDS", 1)
    settings = Settings(out=tmp_path, seeds=(0,), smoke=True)
    page = STUDIES["causal-lm"].run(settings, QUIET)
    text = page.read_text(encoding="utf-8")
    assert "smoke run" in text
    assert "data:image/png;base64," in text
    assert "control: mass of another text" in text
    found = json.loads((tmp_path / "causal-lm" / "causal-lm.json").read_text())
    assert [row["name"] for row in found["rows"]] == [line.name for line in few]
    assert set(found["rows"][0]["bits"]) == {"32", "64"}
    assert set(found["rows"][-1]["bits"]) == {"32"}
    assert found["rows"][2]["attention"]["32"]["lam"]

    # a second run trains nothing again
    def fail(*args, **kwargs):
        raise RuntimeError("trained again")

    monkeypatch.setattr(running, "fit", fail)
    STUDIES["causal-lm"].run(settings, QUIET)
    next((tmp_path / "causal-lm" / "runs").glob("lam-1-*/result.json")).unlink()
    with pytest.raises(RuntimeError, match="trained again"):
        STUDIES["causal-lm"].run(settings, QUIET)
