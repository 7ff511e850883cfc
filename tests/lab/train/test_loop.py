"""A run goes on bit by bit, stops when it should, and says what went wrong."""

import json
import random

import numpy as np
import pytest
import safetensors.torch
import torch

from bistoch.lab.train import (
    CheckpointError,
    DivergedError,
    Recipe,
    checkpoint,
    evaluate,
    fit,
    load_checkpoint,
    loop,
    lr_at,
    read_log,
)

RECIPE = Recipe(epochs=3, batch_size=5, lr=1e-2)


class KilledError(Exception):
    pass


def killer(step):
    def watch(moment):
        if moment.step == step:
            raise KilledError

    return watch


def test_what_is_observed_by_epoch_survives_a_kill(small, tmp_path):
    def observe(model):
        return {"weight": float(next(model.parameters()).detach().sum())}

    task = small.make_task()
    torch.manual_seed(0)
    fitted = fit(small.Noisy(), task, RECIPE, folder=tmp_path / "whole", observe=observe)
    # before the first step, and after each of three epochs
    assert len(fitted.observed) == 4
    assert len({row["weight"] for row in fitted.observed}) == 4
    steps = fitted.steps // 3
    for step in (1, steps, steps + 1, 3 * steps - 1):
        folder = tmp_path / f"killed at {step}"
        torch.manual_seed(0)
        model = small.Noisy()
        start = {name: x.clone() for name, x in model.state_dict().items()}
        with pytest.raises(KilledError):
            fit(model, task, RECIPE, folder=folder, observe=observe, on_step=killer(step))
        other = small.Noisy()
        other.load_state_dict(start)
        again = fit(other, task, RECIPE, folder=folder, observe=observe)
        assert again.observed == fitted.observed
    # a finished run is only read, and one that was not observed has nothing to read
    again = fit(small.Noisy(), task, RECIPE, folder=tmp_path / "whole", observe=observe)
    assert again.observed == fitted.observed
    assert fit(small.Noisy(), task, RECIPE, folder=tmp_path / "none").observed == []


def test_observing_needs_one_process(small, tmp_path):
    ranks = loop.Ranks(0, 2, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"observe looks at the model in one process, but .* 2;"):
        fit(small.Noisy(), small.make_task(), RECIPE, folder=tmp_path, ranks=ranks,
            observe=lambda model: {})  # fmt: skip


def test_a_model_learns(small, tmp_path):
    model, task = small.Noisy(), small.make_task()
    assert evaluate(model, task, "test")["accuracy"] < 0.8
    fitted = fit(model, task, Recipe(epochs=12, batch_size=5, lr=1e-2), folder=tmp_path)
    assert fitted.finished == "all epochs done"
    assert len(fitted.curve) == fitted.epoch == 12
    assert evaluate(model, task, "test")["accuracy"] > 0.9
    assert fitted.curve[-1]["loss"] < fitted.curve[0]["loss"]
    assert not model.training


@pytest.mark.parametrize("step", [1, 4, 7, 11, 20])
@pytest.mark.parametrize("patience", [None, 2])
def test_a_killed_run_goes_on_bit_by_bit(small, tmp_path, step, patience):
    recipe = Recipe(epochs=3, batch_size=5, lr=1e-2, patience=patience)
    task = small.make_task(hold_out=True)
    whole, killed, again = small.Noisy(), small.Noisy(), small.Noisy(seed=7)
    fitted = fit(whole, task, recipe, folder=tmp_path / "whole", seed=3)
    # a checkpoint after every step, and then the run dies; what goes on starts from other weights
    with pytest.raises(KilledError):
        fit(killed, task, recipe, folder=tmp_path / "b", seed=3, on_step=killer(step), save_every=0)
    other = fit(again, task, recipe, folder=tmp_path / "b", seed=3)
    assert other.curve == fitted.curve
    assert small.same(small.weights(whole), small.weights(again))
    first, second = (
        load_checkpoint(tmp_path / name / loop.CHECKPOINT)[1] for name in ("whole", "b")
    )
    assert small.same(first, second)
    assert any(name.startswith("optimizer.") for name in first)
    assert read_log(tmp_path / "whole" / loop.METRICS) == read_log(tmp_path / "b" / loop.METRICS)


def test_a_run_killed_before_a_checkpoint_starts_again_without_a_trace(small, tmp_path):
    task = small.make_task()
    with pytest.raises(KilledError):
        fit(small.Noisy(), task, RECIPE, folder=tmp_path / "b", on_step=killer(13))
    model, other = small.Noisy(), small.Noisy()
    fit(model, task, RECIPE, folder=tmp_path / "b")
    fit(other, task, RECIPE, folder=tmp_path / "whole")
    assert small.same(small.weights(model), small.weights(other))
    assert read_log(tmp_path / "whole" / loop.METRICS) == read_log(tmp_path / "b" / loop.METRICS)


def test_two_trainings_do_not_mix_in_one_folder(small, tmp_path):
    def another(moment):
        with pytest.raises(ValueError, match="is in use by another process; wait"):
            fit(small.Noisy(), small.make_task(), RECIPE, folder=tmp_path)

    fit(small.Noisy(), small.make_task(), RECIPE, folder=tmp_path, on_step=another)
    assert len(read_log(tmp_path / loop.METRICS)) > 0


def test_seeds_differ_and_order_is_what_differs(small, tmp_path):
    first, second = small.Noisy(), small.Noisy()
    fit(first, small.make_task(), RECIPE, folder=tmp_path / "a", seed=0)
    fit(second, small.make_task(), RECIPE, folder=tmp_path / "b", seed=1)
    assert not small.same(small.weights(first), small.weights(second))


def test_training_leaves_all_random_numbers_alone(small, tmp_path):
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    fit(small.Noisy(), small.make_task(), RECIPE, folder=tmp_path)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (np.random.get_state()[1].tolist(), random.getstate())


def test_a_finished_run_is_only_read(small, tmp_path):
    fit(small.Noisy(), small.make_task(), RECIPE, folder=tmp_path)
    written = (tmp_path / loop.CHECKPOINT).read_bytes()
    model = small.Noisy(seed=5)
    fit(model, small.make_task(), RECIPE, folder=tmp_path, on_step=killer(0))
    assert (tmp_path / loop.CHECKPOINT).read_bytes() == written
    assert small.same(small.weights(model), small.weights_of(written))


def test_patience_stops_and_keeps_the_best(small, tmp_path):
    task = small.make_task(hold_out=True, train=60, noise=2.0)
    recipe = Recipe(epochs=200, batch_size=5, lr=3e-2, patience=3, schedule="constant", warmup=0.0)
    model = small.Noisy()
    fitted = fit(model, task, recipe, folder=tmp_path)
    assert len(fitted.curve) < 200
    assert fitted.epoch == len(fitted.curve) - 3
    scores = [row["accuracy"] for row in fitted.curve]
    assert scores[fitted.epoch - 1] == max(scores)
    assert evaluate(model, task, "valid")["accuracy"] == max(scores)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "state"])
def test_a_damaged_checkpoint_is_a_sentence(small, tmp_path, damage):
    fit(small.Noisy(), small.make_task(), RECIPE, folder=tmp_path)
    path = tmp_path / loop.CHECKPOINT
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[-100] ^= 1
    if damage == "state":
        # one digit of the state, in the header
        place = content.index(b'step\\":') + len(b'step\\": ')
        content[place : place + 1] = b"1" if content[place : place + 1] != b"1" else b"2"
    new = {"cut": content[: len(content) // 2], "empty": b"", "text": b"hello" * 20}
    path.write_bytes(new.get(damage, content))
    with pytest.raises(CheckpointError, match=r"is damaged or no checkpoint of bistoch.*remove it"):
        fit(small.Noisy(), small.make_task(), RECIPE, folder=tmp_path)


def forge(path, change, tensors=lambda found: found):
    """Another state or other tensors in a checkpoint, with a checksum that fits."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    state = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["state"])
    found = tensors(safetensors.torch.load(content))
    words = json.dumps(change(state))
    marks = {"state": words, "sha256": checkpoint._digest(found, words)}
    path.write_bytes(safetensors.torch.save(found, marks))


FORGED = {
    "no format": lambda s: {k: v for k, v in s.items() if k != "format"},
    "another format": lambda s: s | {"format": 99},
    "a list": lambda s: [s],
    "an unknown field": lambda s: s | {"more": 1},
    "a field less": lambda s: {k: v for k, v in s.items() if k != "curve"},
    "step below zero": lambda s: s | {"step": -3},
    "step as text": lambda s: s | {"step": "3"},
    "step of another run": lambda s: s | {"step": 10**6},
    "step of another epoch": lambda s: s | {"step": 0, "finished": ""},
    "curve of text": lambda s: s | {"curve": ["a", "b", "c"]},
    "curve without a score": lambda s: s | {"curve": [{"loss": 1.0}] * 3},
    "curve without losses": lambda s: s | {"curve": 3},
    "nan": lambda s: s | {"total": float("nan")},
    "best of no epoch": lambda s: s | {"best": 1.0},
    "finished before it began": lambda s: s | {"step": 0, "curve": []},
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_state_is_a_sentence(small, tmp_path, what):
    fit(small.Noisy(), small.make_task(), RECIPE, folder=tmp_path)
    forge(tmp_path / loop.CHECKPOINT, FORGED[what])
    with pytest.raises(CheckpointError, match=r"is damaged or no checkpoint of bistoch.*remove it"):
        fit(small.Noisy(), small.make_task(), RECIPE, folder=tmp_path)


FORGED_TENSORS = {
    "another shape": lambda t: t | {"optimizer.0.exp_avg": torch.zeros(3, 2)},
    "too many": lambda t: t | {"optimizer.99.exp_avg": torch.zeros(())},
    "no number": lambda t: t | {"optimizer.first.exp_avg": torch.zeros(())},
    "an unknown key": lambda t: t | {"optimizer.0.speed": torch.zeros(())},
    "a key less": lambda t: {k: v for k, v in t.items() if k != "optimizer.0.exp_avg"},
    "other best weights": lambda t: t | {"best.head.weight": torch.zeros(2, 2)},
}


@pytest.mark.parametrize("what", FORGED_TENSORS)
def test_forged_tensors_are_a_sentence(small, tmp_path, what):
    fit(small.Noisy(), small.make_task(), RECIPE, folder=tmp_path)
    forge(tmp_path / loop.CHECKPOINT, lambda state: state, FORGED_TENSORS[what])
    with pytest.raises(
        CheckpointError, match=r"is damaged or no checkpoint|belongs to another mod"
    ):
        fit(small.Noisy(), small.make_task(), RECIPE, folder=tmp_path)


def test_a_checkpoint_of_another_model_is_a_sentence(small, tmp_path):
    fit(small.Noisy(), small.make_task(), RECIPE, folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"belongs to another model: 0.bias does not fit"):
        fit(torch.nn.Sequential(torch.nn.Linear(3, 3)), small.make_task(), RECIPE, folder=tmp_path)


def test_a_loss_that_is_no_number_is_diagnosed(small, tmp_path):
    model = small.Noisy()
    recipe = Recipe(
        epochs=3, batch_size=5, lr=1e30, optimizer="sgd", schedule="constant", clip=None, warmup=0.0
    )
    with pytest.raises(DivergedError) as caught:
        fit(model, small.make_task(), recipe, folder=tmp_path)
    words = str(caught.value)
    assert "at step " in words
    assert "(epoch 1, learning rate 1e+30)" in words
    assert "body.0.weight" in words
    assert "the gradient norm of the step before was " in words
    assert "lower the learning rate" in words


def test_weights_spoiled_by_the_last_step_are_diagnosed(small, tmp_path):
    # one batch and one epoch: no later step would notice
    recipe = Recipe(
        epochs=1,
        batch_size=37,
        lr=1e38,
        optimizer="sgd",
        schedule="constant",
        clip=None,
        warmup=0.0,
    )
    model = small.Noisy()
    model.head.weight.register_hook(lambda gradient: gradient * 1e6)
    with pytest.raises(DivergedError) as caught:
        fit(model, small.make_task(), recipe, folder=tmp_path)
    words = str(caught.value)
    assert "the loss on test is nan at step 1 (epoch 1, learning rate 1e+38)" in words
    assert "the weights of head.weight are not finite already" in words


def test_a_gradient_that_is_no_number_stops_before_it_is_used(small, tmp_path):
    model = small.Noisy()
    model.head.weight.register_hook(lambda gradient: gradient * torch.inf)
    before = small.weights(model)
    with pytest.raises(DivergedError, match=r"the gradient norm is .*head.weight is not finite"):
        fit(model, small.make_task(), RECIPE, folder=tmp_path)
    assert small.same(before, small.weights(model))


def test_bf16_trains_and_keeps_weights_in_fp32(small, tmp_path):
    model, seen = small.Noisy(), []
    model.head.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    recipe = Recipe(epochs=1, batch_size=5, precision="bf16")
    fit(model, small.make_task(), recipe, folder=tmp_path)
    assert set(seen) == {torch.bfloat16}
    assert model.head.weight.dtype == torch.float32


def test_schedules():
    recipe = Recipe(epochs=10, lr=2.0, warmup=0.1, min_lr=0.25)
    rates = [lr_at(recipe, step, 10) for step in range(100)]
    assert max(rates) == 2.0
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0.5 < rates[-1] < 0.51
    steps = Recipe(epochs=50, lr=5e-4, schedule="steps", milestones=(31, 45), warmup=0.0)
    found = {epoch: lr_at(steps, (epoch - 1) * 7, 7) for epoch in (1, 30, 31, 44, 45, 50)}
    assert found == pytest.approx(
        {1: 5e-4, 30: 5e-4, 31: 5e-5, 44: 5e-5, 45: 5e-6, 50: 5e-6}, rel=1e-12
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"epochs": 0}, "epochs must be at least 1, but it is 0"),
        ({"lr": -1.0}, "lr must be above 0, but it is -1.0"),
        ({"optimizer": "adamm"}, "optimizer must be one of adamw, adam, sgd, but it is 'adamm'"),
        ({"schedule": "steps"}, "milestones belong to schedule='steps'"),
        ({"warmup": 1.0}, "warmup must be a fraction"),
        ({"patience": 0}, "patience must be at least 1"),
    ],
)
def test_a_wrong_recipe_is_a_sentence(words, sentence):
    with pytest.raises(ValueError, match=sentence):
        Recipe(**words)


def test_vectors_do_not_decay():
    layer = torch.nn.Linear(3, 2)
    optimizer = loop.make_optimizer(layer, Recipe(weight_decay=0.5))
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decay == {id(layer.weight): 0.5, id(layer.bias): 0.0}
