"""Runs from words: every kind of data, what is kept beside a checkpoint, and what is refused."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.lab.data import Corpus, Series
from bistoch.lab.train import (
    CheckpointError,
    Recipe,
    Setup,
    load_checkpoint,
    new_model,
    open_task,
    restore_run,
    train_run,
)
from bistoch.lab.train.run import evaluate_run
from bistoch.lab.train.sequences import Forecast, NextCharacter

VIT = "vit(patch=(3,5), depth=1, dim=8, heads=2)"
SHORT = ("--epochs", "1", "--batch-size", "8", "--no-tensorboard")


def run(*words):
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, [str(w) for w in words])


@pytest.fixture
def pictures(tmp_path):
    generator = np.random.default_rng(0)
    y = np.arange(30) % 2
    x = generator.integers(0, 60, (30, 6, 5), np.uint8)
    x[y == 1, :3] += 180
    np.savez(tmp_path / "mine.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:],
             classes=np.array(["dark", "bright"]))  # fmt: skip
    return tmp_path / "mine.npz"


@pytest.fixture
def sentences(tmp_path):
    path = tmp_path / "mine.csv"
    rows = [f"{'a good film' if i % 2 else 'a bad one'} number {i},{i % 2}" for i in range(40)]
    path.write_text("\n".join(["text,label", *rows]))
    return path


def test_train_eval_and_predict_pictures(pictures, tmp_path):
    out = tmp_path / "run"
    words = ("train", "--data", pictures, "--model", VIT, "--operator", "elastic(lam=0.5)",
             "--epochs", 20, "--batch-size", 8, "--lr", 0.01, "--no-tensorboard", "--out",
             out)  # fmt: skip
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    assert "all epochs done" in result.stdout
    config = json.loads((out / "config.json").read_text())
    assert config["setup"]["operator"] == "elastic(lam=0.5)"
    assert config["facts"]["classes"] == ["dark", "bright"]
    scored = json.loads(run("eval", out, "--json").stdout)
    assert scored["accuracy"] == 1.0
    assert scored["samples"] == 10
    # labels for a file of arrays, a folder of pictures, and a single colour picture
    from PIL import Image

    with np.load(pictures) as arrays:
        x, y = arrays["x_test"], arrays["y_test"]
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "folder").mkdir()
    Image.fromarray(x[0]).save(tmp_path / "folder" / "one.png")
    Image.fromarray(np.repeat(x[1][..., None], 3, 2)).save(tmp_path / "two.png")
    result = run("predict", out, tmp_path / "x.npy", tmp_path / "folder", tmp_path / "two.png")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "sample,label,probability"
    labels = [line.split(",")[1] for line in lines[1:]]
    assert labels[:10] == [("dark", "bright")[i] for i in y]
    assert labels[10:] == [("dark", "bright")[y[0]], ("dark", "bright")[y[1]]]
    # a picture of another size, a folder without any, a file that is not there
    Image.fromarray(np.zeros((7, 5), np.uint8)).save(tmp_path / "large.png")
    (tmp_path / "none").mkdir()
    (tmp_path / "words.csv").write_text("text")
    for path, sentence in (
        (tmp_path / "large.png", "must be a uint8 image of 6 x 5 (height x width)"),
        (tmp_path / "none", "there is no image ("),
        (tmp_path / "nowhere.png", "does not exist"),
        (tmp_path / "words.csv", "words.csv is cut or damaged, or not an image (its kind is"),
    ):
        refused = run("predict", out, path)
        assert refused.exit_code == 2
        assert sentence in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    # the same words again only read; others are refused
    before = (out / "checkpoint.safetensors").read_bytes()
    assert run(*words).exit_code == 0
    assert (out / "checkpoint.safetensors").read_bytes() == before
    refused = run(*words, "--seed", 1)
    assert refused.exit_code == 2
    assert "holds a run with seed = 0, but now it is 1" in refused.stderr


def test_a_model_that_takes_no_operator_is_trained_with_its_own_options(pictures, tmp_path):
    words = ["train", "--data", pictures, *SHORT, "--out", tmp_path / "run"]
    model = "stochastic_vit(patch=(3, 5), depth=1, dim=8, heads=2, lam=0.5)"
    refused = run(*words, "--model", model, "--operator", "sinkhorn")
    assert refused.exit_code == 2
    assert "takes no operator" in refused.stderr
    assert not (tmp_path / "run").exists()
    result = run(*words, "--model", model)
    assert result.exit_code == 0, result.output
    again = restore_run(tmp_path / "run")
    assert again.setup.operator is None
    assert again.model.config.lam == 0.5
    assert run("eval", tmp_path / "run").exit_code == 0


def test_train_eval_and_predict_texts(sentences, tmp_path):
    out = tmp_path / "run"
    result = run("train", "--data", sentences, "--model", "text(depth=1, dim=16, heads=2)",
                 "--operator", "sinkhorn", "--epochs", 12, "--batch-size", 8, "--lr", 0.01,
                 "--no-tensorboard", "--out", out)  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert json.loads(run("eval", out, "--json").stdout)["accuracy"] == 1.0
    (tmp_path / "new.txt").write_text("a good film\n\nbad\n")
    (tmp_path / "new.jsonl").write_text('{"text": "good"}\n')
    (tmp_path / "new.csv").write_text("text\none bad film\n")
    result = run("predict", out, *(tmp_path / f"new.{form}" for form in ("txt", "jsonl", "csv")),
                 "--out", tmp_path / "labels.csv")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    lines = (tmp_path / "labels.csv").read_text().splitlines()[1:]
    assert [line.split(",")[1] for line in lines] == ["1", "0", "1", "0"]
    (tmp_path / "wrong.csv").write_text("words\ngood\n")
    refused = run("predict", out, tmp_path / "wrong.csv")
    assert "expected the column text, but text is missing; the head is words" in refused.stderr
    # other data of the same classes, read with the words the model knows
    other = tmp_path / "other.csv"
    other.write_text("text,label\n" + "\n".join(f"zz good {i},1\nzz bad {i},0" for i in range(9)))
    assert evaluate_run(out, str(other))["accuracy"] == 1.0


def test_points_are_labelled(tmp_path):
    result = run("train", "--data", "shapes", "--model",
                 "set_transformer(depth=1, dim=8, heads=2, inducing=3)", *SHORT[:2],
                 "--batch-size", 500, "--no-tensorboard", "--out", tmp_path / "run")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    np.savez(tmp_path / "clouds.npz", x=np.random.default_rng(0).normal(size=(3, 11, 3)))
    result = run("predict", tmp_path / "run", tmp_path / "clouds.npz")
    assert len(result.stdout.splitlines()) == 4
    # clouds of different sizes in one call are as each alone
    np.save(tmp_path / "larger.npy", np.random.default_rng(1).normal(size=(2, 13, 3)))
    both = run("predict", tmp_path / "run", tmp_path / "clouds.npz", tmp_path / "larger.npy")
    assert both.exit_code == 0, both.stderr
    alone = run("predict", tmp_path / "run", tmp_path / "larger.npy").stdout.splitlines()
    assert both.stdout.splitlines() == [*result.stdout.splitlines(), *alone[1:]]


def test_a_part_of_every_cloud_is_read(tmp_path):
    rows = torch.arange(7)
    whole, part = open_task("shapes"), open_task("shapes", length=11)
    (clouds,), (some,) = (task.batch("test", rows).inputs for task in (whole, part))
    assert some.shape == (7, 11, 3)
    # the same places of every cloud, and the same in every run
    places = [int((clouds[0] == point).all(-1).nonzero()) for point in some[0]]
    assert torch.equal(clouds[:, places], some)
    assert torch.equal(some, open_task("shapes", length=11).batch("test", rows).inputs[0])
    assert max(places) - min(places) > 32
    # a trained model reads as much of what it is shown later
    out = tmp_path / "run"
    words = ("train", "--data", "shapes", "--model", "set_transformer(dim=8, depth=1, heads=2)",
             "--epochs", 1, "--batch-size", 250, "--no-tensorboard", "--out", out)  # fmt: skip
    assert run(*words, "--length", 11).exit_code == 0
    refused = run(*words, "--length", 13)
    assert refused.exit_code == 2
    assert "facts.length = 11, but now it is 13" in refused.stderr
    np.save(tmp_path / "whole.npy", clouds.numpy())
    np.save(tmp_path / "part.npy", some.numpy())
    # fewer points than that are left whole
    one, other = (
        [line.split(",")[1:] for line in run("predict", out, tmp_path / name).stdout.splitlines()]
        for name in ("whole.npy", "part.npy")
    )
    assert one == other
    restored = restore_run(out)
    with torch.no_grad():
        right = (restored.model(*part.batch("test", torch.arange(500)).inputs).argmax(-1)
                 == torch.from_numpy(part.labels["test"])).float().mean()  # fmt: skip
    assert evaluate_run(out)["accuracy"] == pytest.approx(right.item(), abs=1e-6)


@pytest.mark.parametrize("data", ["fashion-mnist-small", "recall"])
def test_a_length_of_what_has_none_is_refused(data):
    with pytest.raises(ValueError, match=f"length belongs to text, .* but {data} is"):
        open_task(data, length=3)


def test_a_language_model_writes_on(pictures, tmp_path):
    text = "the cat sat on the mat. " * 40
    for kind, corpus in (("signs", text), ("bytes", text.replace("c", "é").encode())):
        task = NextCharacter(Corpus("cat", "corpus", corpus, corpus[:200], corpus[:200]), length=24)
        recipe = Recipe(epochs=6, batch_size=4, lr=2e-2)
        setup = Setup("cat", "lm(depth=1, dim=16, heads=2)", "causal_elastic", recipe)
        train_run(setup, task, tmp_path / kind)
    folder = tmp_path / "signs"
    result = run("generate", folder, "--prompt", "the cat s", "--count", 15, "--temperature", 0)
    assert result.exit_code == 0
    assert result.stdout == "the cat sat on the mat. \n"
    drawn = [
        run("generate", folder, "--prompt", "the", "--temperature", 2, "--seed", s).stdout
        for s in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == len("the") + 400 + 1
    # a model of bytes reads and writes characters of several bytes
    result = run("generate", tmp_path / "bytes", "--prompt", "the é", "--count", 4)
    assert result.exit_code == 0
    assert result.stdout.startswith("the é")
    for words, sentence in (
        (("--prompt", "the dog"), "characters of the training text, but 'd', 'g' is not among"),
        (("--prompt", ""), "prompt must have at least one character"),
    ):
        refused = run("generate", folder, *words)
        assert refused.exit_code == 2
        assert sentence in refused.stderr
    run("train", "--data", pictures, "--model", VIT, *SHORT, "--out", tmp_path / "seeing")
    refused = run("generate", tmp_path / "seeing")
    assert refused.exit_code == 2
    assert "a language model is needed, but" in refused.stderr
    assert "holds a model of images" in refused.stderr
    assert "not the folder of a training run" in run("generate", tmp_path).stderr


def test_a_language_model_and_a_forecaster_learn(tmp_path):
    text = "the cat sat on the mat. " * 60
    task = NextCharacter(Corpus("cat", "corpus", text, text[:200], text[:200]), length=16)
    setup = Setup(
        "cat", "lm(depth=1, dim=16, heads=2)", "softmax", Recipe(epochs=3, batch_size=4, lr=1e-2)
    )
    _, fitted = train_run(setup, task, tmp_path / "lm")
    assert fitted.curve[-1]["bits"] < 0.8 * fitted.curve[0]["bits"]
    time_ = np.arange(300)
    values = np.stack([np.sin(time_ / 5), np.cos(time_ / 7)], 1)
    series = Series("waves", "series", values, time_, ("a", "b"), "a", (200, 250, 300))
    task = Forecast(series, lookback=16, horizon=4)
    model = "forecast(lookback=16, horizon=4, dim=16, heads=2, extend=4, depth=1)"
    setup = Setup("waves", model, "sinkhorn", Recipe(epochs=6, batch_size=16, lr=1e-2))
    trained, fitted = train_run(setup, task, tmp_path / "forecast")
    assert fitted.curve[-1]["mse"] < 0.5
    again = restore_run(tmp_path / "forecast")
    seen = task.batch("test", torch.arange(3)).inputs[0]
    torch.testing.assert_close(again.model(seen), trained(seen))
    # forecasts of test begin at the border, and what they look back at may lie before it
    assert task.batch("test", torch.tensor([0])).target[0, 0].tolist() == pytest.approx(
        task.values[250].tolist()
    )


def test_operators_of_one_seed_start_from_the_same_weights():
    task = open_task("fashion-mnist-small")
    texts = ("softmax", "sinkhorn", "elastic(learn='head')")
    models = [new_model(Setup("", "vit_stripes", text, seed=3), task) for text in texts]
    for name, x in models[0].state_dict().items():
        assert all(torch.equal(x, model.state_dict()[name]) for model in models)
    other = new_model(Setup("", "vit_stripes", "softmax", seed=4), task)
    assert not torch.equal(other.embed.weight, models[0].embed.weight)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--data", "no/such/folder"), "no/such/folder does not exist"),
        (("--data", "fashion"), "did you mean fashion-mnist"),
        (("--model", "vitt"), "unknown name 'vitt' in 'vitt'; known are vit,"),
        (("--model", "set_transformer"), "takes points, but fashion-mnist-small is images"),
        (("--operator", "softmaxx"), "softmaxx"),
        (("--lr", "0"), "lr must be above 0"),
        (("--schedule", "steps"), "milestones belong to schedule='steps'"),
        (("--device", "cuda"), "sees no cuda device"),
        (("--device", "mps"), "device must be cpu, cuda or cuda:0, but it is 'mps'"),
        (("--model", "vit(classes=3)"), "the data decide classes, 10 for fashion-mnist-small, but"),
    ],
)
def test_a_mistake_is_one_sentence(words, sentence, tmp_path):
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("cuda is there")
    result = run("train", *words, "--no-tensorboard", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path):
    for verb in (("eval", tmp_path), ("predict", tmp_path / "nowhere", "x.npy")):
        result = run(*verb)
        assert result.exit_code == 2
        assert "it has no config.json" in result.stderr
    (tmp_path / "config.json").write_text("{ half")
    with pytest.raises(CheckpointError, match="is damaged"):
        restore_run(tmp_path)


@pytest.mark.parametrize("package", ["safetensors", "tensorboard"])
def test_a_missing_extra_is_said(package, pictures, tmp_path, monkeypatch):
    words = ("train", "--data", pictures, "--model", VIT, *SHORT[:4], "--out", tmp_path / "run")
    if package == "tensorboard":
        monkeypatch.setattr("bistoch.lab.train.log.has_tensorboard", lambda: False)
        result = run(*words)
        assert result.exit_code == 0
        assert result.stdout.count("tensorboard is missing") == 1
        assert (tmp_path / "run" / "metrics.jsonl").exists()
        return
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    result = run(*words)
    assert result.exit_code == 2
    assert (
        'checkpoints need safetensors; install it with: pip install "bistoch[lab]"' in result.stderr
    )


@pytest.mark.slow
def test_tensorboard_gets_the_numbers(pictures, tmp_path):
    pytest.importorskip("tensorboard")
    result = run("train", "--data", pictures, "--model", VIT, *SHORT[:4], "--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("epoch/accuracy")] == [3]


@pytest.mark.slow
def test_a_process_killed_anywhere_goes_on_bit_by_bit(tmp_path):
    """Real processes, kill -9 at moments of no one's choosing, until the run is through."""
    words = [
        sys.executable, "-m", "bistoch", "train", "--model",
        "vit(patch=(7,7), depth=1, dim=16, heads=2, dropout=0.1)", "--epochs", "6", "--batch-size",
        "16", "--no-tensorboard", "--operator", "elastic(lam=0.5)", "--patience", "5",
    ]  # fmt: skip
    code = (
        "import sys; from bistoch.lab.train import loop; loop.SAVE_EVERY = 0.05; "
        "loop.fit.__kwdefaults__['save_every'] = 0.05; "
        "from bistoch.cli import app; app(sys.argv[1:])"
    )
    words[1:3] = ["-c", code]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*words, "--out", str(whole)], check=True, capture_output=True, timeout=300)
    kills = 0
    for pause in (0.3, 0.7, 0.1, 1.1):
        process = subprocess.Popen([*words, "--out", str(killed)], stdout=subprocess.DEVNULL)
        began = time.monotonic()
        known = (killed / "checkpoint.safetensors").exists() and os.stat(
            killed / "checkpoint.safetensors"
        ).st_mtime_ns
        # it must have written something new before it dies
        while time.monotonic() - began < 120 and process.poll() is None:
            path = killed / "checkpoint.safetensors"
            if path.exists() and path.stat().st_mtime_ns != known:
                break
            time.sleep(0.01)
        time.sleep(pause)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait(60)
    assert kills >= 2
    subprocess.run([*words, "--out", str(killed)], check=True, capture_output=True, timeout=300)
    (state, tensors), (other, others) = (
        load_checkpoint(folder / "checkpoint.safetensors") for folder in (whole, killed)
    )
    assert state.curve == other.curve
    assert tensors.keys() == others.keys()
    assert all(torch.equal(x, others[name]) for name, x in tensors.items())
    assert (whole / "metrics.jsonl").read_text() == (killed / "metrics.jsonl").read_text()


def test_the_weighted_loss_counts_early_steps_more_and_the_score_does_not():
    values = np.arange(60.0).reshape(30, 2)
    series = Series("line", "series", values, np.arange(30), ("a", "b"), "a", (18, 24, 30))
    task = Forecast(series, lookback=4, horizon=4, loss="weighted_l1")
    target = torch.zeros(2, 4, 2)
    miss = torch.tensor([[-1.0, 2.0, 0.0, 4.0], [0.0, 0.0, 0.0, 1.0]])[..., None].expand(2, 4, 2)
    weighted = (1 + 2 / math.sqrt(2) + 4 / 2) / 4
    torch.testing.assert_close(task.losses(miss, target), torch.tensor([weighted, 1 / 8]))
    torch.testing.assert_close(task.scores(miss, target), torch.tensor([21 / 4, 1 / 4]))
