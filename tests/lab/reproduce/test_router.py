"""The study of routers: baselines are what they say, loads are kept, and it runs."""

import pytest
import torch
from rich.console import Console

from bistoch.lab.reproduce import router as study
from bistoch.lab.reproduce.router_layers import (
    AuxiliaryLoss,
    ExpertChoice,
    Mixture,
    QuantileBias,
    SignBias,
)
from bistoch.lab.study import Results, Row, Settings, read_record, run_study
from bistoch.nn import Router

DIM, EXPERTS = 8, 4
QUIET = Console(quiet=True)


def tokens(seed, shift=1.0):
    random = torch.Generator().manual_seed(seed)
    middle = torch.randn(DIM, generator=torch.Generator().manual_seed(99))
    return torch.randn(4, 64, DIM, generator=random) + shift * middle


def new_router(kind, **options):
    torch.manual_seed(0)
    return kind(DIM, EXPERTS, **options)


def overload(router, batches=30):
    loads = [router(tokens(seed)).load for seed in range(batches)][-10:]
    return (torch.stack(loads).amax(-1) / 64).mean().item()


def test_every_bias_evens_the_loads():
    none = overload(new_router(Router, lam=0.0))
    sign = new_router(SignBias)
    sign.rate = 0.1
    assert overload(sign) < 0.8 * none
    assert overload(new_router(QuantileBias, decay=0.0)) < 1.3
    assert overload(new_router(QuantileBias)) < 1.3
    assert overload(new_router(Router)) < 1.3
    assert none > 1.7


def test_the_sign_bias_by_hand():
    router = new_router(SignBias)
    load = router(tokens(0)).load.float()
    torch.testing.assert_close(router.bias, 0.001 * (load.mean() - load).sign())


def test_potentials_tend_to_the_bias_of_quantiles():
    # both solve the same assignment, one of them warm
    x = tokens(0, shift=0.3)
    warm, cold = new_router(Router, eps=0.01, iters=2000), new_router(QuantileBias, iters=200)
    warm(x), cold(x)
    loads = [router.eval()(x).load for router in (warm, cold)]
    for load in loads:
        assert load.max() <= 64 + 3


def test_the_auxiliary_loss_reaches_the_logits_and_only_in_training():
    router = new_router(AuxiliaryLoss, lam=0.0)
    x = tokens(0)
    plain = new_router(Router, lam=0.0)
    for one, two in zip(router(x), plain(x), strict=True):
        assert torch.equal(one, two)
    # no gradient but that of the loss
    (0 * router(x).gates.sum()).backward()
    load = plain(x).load / (4 * 64)
    likely = plain.logits(x).softmax(-1).flatten(0, 1).mean(0)
    (0.01 * EXPERTS * (load * likely).sum()).backward()
    torch.testing.assert_close(router.weight.grad, plain.weight.grad)
    router.eval().weight.grad = None
    (0 * router(x).gates.sum()).backward()
    assert not router.weight.grad.any()


def test_a_mixture_by_hand():
    layer = Mixture(new_router(Router, top_k=2), hidden=16, steps=1).eval()
    x = tokens(0)[:1, :7]
    routing = layer.router(x)
    for place in range(7):
        wanted = torch.zeros(DIM)
        for expert, gate in zip(routing.experts[0, place], routing.gates[0, place], strict=True):
            inner = torch.nn.functional.gelu(x[0, place] @ layer.first[expert])
            wanted = wanted + gate * (inner @ layer.second[expert])
        torch.testing.assert_close(layer(x)[0, place], wanted, atol=1e-5, rtol=1e-4)


def test_loads_of_training_steps_are_in_the_state():
    layer = Mixture(new_router(Router), hidden=16, steps=2)
    for seed in range(3):
        layer(tokens(seed))
    assert layer.loads.sum(-1).tolist() == [256, 256]
    other = Mixture(new_router(Router), hidden=16, steps=2)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.loads, layer.loads)


@pytest.mark.parametrize("line", study.LINES, ids=lambda line: line.name)
def test_expert_choice_leaks_and_nobody_else(line):
    layer = Mixture(new_router(line.router, **line.options), hidden=16, steps=1)
    layer(tokens(0))
    assert study.leaks(layer) == (line.router is ExpertChoice)


def test_experts_that_choose_take_equal_shares():
    layer = Mixture(new_router(ExpertChoice), hidden=16, steps=1)
    layer(tokens(0))
    assert layer.load.tolist() == [64] * EXPERTS


def test_lines_of_a_seed_start_from_the_same_weights():
    task = study.open_text(study.SMOKE)
    models = [study.new_model(study.SMOKE, line, task, 3).state_dict() for line in study.LINES]
    for state in models:
        for name, weight in models[0].items():
            assert torch.equal(state[name], weight)


def test_verdicts_can_say_no():
    def checks(ours, bits, leak):
        rows = [
            Row(name, seed, {}, {
                "bits": x + seed / 10, "leaks": name == leak,
                "train": {"overload": load + seed / 1000}, "test": {"overload": load + seed / 1000},
            })
            for name, load, x in ((study.OURS, ours, bits), (study.NONE, 2.0, 3.0))
            for seed in range(3)
        ]  # fmt: skip
        found = study.checks(Results(rows))
        return [verdict.holds for verdict in found]

    assert checks(1.05, 3.001, "expert choice")[:-1] == ["yes"] * 4
    opposite = "no, the opposite"
    assert checks(2.5, 3.5, study.OURS) == [opposite, opposite, opposite, "no", "no"]


def test_the_study_ends_with_a_page_and_resumes(tmp_path, monkeypatch):
    few = tuple(line for line in study.LINES if line.name in (
        study.NONE, study.OURS, "auxiliary loss", "expert choice"
    ))  # fmt: skip
    monkeypatch.setattr(study, "LINES", few)
    settings = Settings(out=tmp_path, seeds=(0,), smoke=True)
    text = run_study(study.STUDY, settings, QUIET).read_text(encoding="utf-8")
    assert "smoke run" in text
    assert "data:image/png;base64," in text
    results = read_record(tmp_path / "router" / "report.json")
    assert results.names == [line.name for line in few]
    found = results.by_seed("expert choice")[0]
    assert found["leaks"]
    assert found["test"]["overload"] == pytest.approx(1, abs=0.01)
    assert abs(results.by_seed(study.OURS)[0]["alone"]) < 1e-5
    assert abs(found["alone"]) > 1e-5

    def fail(*args, **kwargs):
        raise RuntimeError("trained again")

    monkeypatch.setattr(study, "fit", fail)
    run_study(study.STUDY, settings, QUIET)
