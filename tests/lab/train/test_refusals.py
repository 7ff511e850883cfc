"""What a run, `eval` and `predict` refuse, and that what they do not refuse is right."""

import errno
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.lab.data import Corpus, DataError
from bistoch.lab.train import (
    CheckpointError,
    Recipe,
    Setup,
    open_task,
    predict,
    restore_run,
    train_run,
)
from bistoch.lab.train.run import _refuse_another_run, evaluate_run, task_of
from bistoch.lab.train.sequences import NextCharacter

# in the package, the name is the command's
CLI_TRAIN = sys.modules["bistoch.cli.train"]
VIT = "vit(patch=(3,5), depth=1, dim=8, heads=2)"
SETS = "set_transformer(depth=1, dim=8, heads=2, inducing=3)"
RECIPE = Recipe(epochs=1, batch_size=250)


def run(*words):
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, [str(w) for w in words])


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    """A model of grey pictures, 6 x 5."""
    folder = tmp_path_factory.mktemp("seeing")
    x = np.random.default_rng(0).integers(0, 256, (20, 6, 5), np.uint8)
    y = np.arange(20) % 2
    np.savez(folder / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = str(folder / "mine.npz")
    train_run(Setup(data, VIT, recipe=RECIPE), open_task(data), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def touching(tmp_path_factory):
    """A model of points."""
    folder = tmp_path_factory.mktemp("touching")
    train_run(Setup("shapes", SETS, recipe=RECIPE), open_task("shapes"), folder)
    return folder


@pytest.fixture(scope="module")
def recalling(tmp_path_factory):
    """A model of tokens."""
    folder = tmp_path_factory.mktemp("recalling")
    setup = Setup(
        "recall", "text(depth=1, dim=8, heads=2)", recipe=Recipe(epochs=1, batch_size=4000)
    )
    train_run(setup, open_task("recall"), folder)
    return folder


BAD_SAMPLES = {
    "one picture": (
        "seeing",
        np.zeros((6, 5), np.uint8),
        r"must hold images \(n, h, w\) or .*, but its shape is \(6, 5\); if .* store x\[None\]",
    ),
    "a number": ("seeing", np.array(3), r"but its shape is \(\)"),
    "floats": ("seeing", np.zeros((2, 6, 5)), r"\[0\] must be a uint8 image .* float64 \(6, 5\)"),
    "four colours": (
        "seeing",
        np.zeros((2, 6, 5, 4), np.uint8),
        r"grey or RGB, .* but it is uint8 \(6, 5, 4\); convert",
    ),
    "one colour": ("seeing", np.zeros((2, 6, 5, 1), np.uint8), r"but it is uint8 \(6, 5, 1\)"),
    "one cloud": ("touching", np.zeros((7, 3)), r"must hold points \(n, p, 3\), .* \(7, 3\); if"),
    "words": ("touching", np.full((1, 7, 3), "a"), r"must be points \(p, 3\), but it is <U1"),
    "no point": ("touching", np.zeros((1, 0, 3)), r"must be points \(p, 3\), .* \(0, 3\)"),
    "nan": ("touching", np.full((1, 7, 3), np.nan), "must be finite in float32"),
    "too large": ("touching", np.full((1, 7, 3), 1e300), "must be finite in float32"),
    "no probability": (
        "touching",
        np.eye(3)[None] * 1e30,
        r"of .*\[0\] are not finite",
    ),
    "below zero": ("recalling", np.array([[3, -1]]), "must be token ids.* with the smallest -1"),
    "no token": ("recalling", np.zeros((1, 0), int), r"must be token ids.* \(0,\)"),
}


@pytest.mark.parametrize("case", BAD_SAMPLES)
def test_samples_that_do_not_fit_are_named(case, tmp_path, request):
    folder, array, said = BAD_SAMPLES[case]
    np.save(tmp_path / "mine.npy", array)
    with pytest.raises(DataError, match=said) as told:
        predict(restore_run(request.getfixturevalue(folder)), [tmp_path / "mine.npy"])
    assert str(tmp_path / "mine.npy") in str(told.value)
    assert "\n" not in str(told.value)


def test_a_run_is_evaluated_on_the_device_of_its_model(seeing):
    """On meta a tensor of the CPU beside those of the model is refused, as it is on a GPU."""
    run = restore_run(seeing, torch.device("meta"))
    task = task_of(run, run.setup.data)
    assert evaluate_run(seeing)["samples"] == task.count("test")


def test_what_is_no_npy_is_named(seeing, tmp_path):
    np.save(tmp_path / "whole.npy", np.zeros((2, 6, 5), np.uint8))
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    whole = (tmp_path / "whole.npy").read_bytes()
    for content in (b"", whole[:50], whole[:-1], (tmp_path / "other.npz").read_bytes()):
        (tmp_path / "mine.npy").write_bytes(content)
        with pytest.raises(DataError, match=r"mine\.npy is not a whole \.npy file"):
            predict(restore_run(seeing), [tmp_path / "mine.npy"])


def test_hidden_pictures_are_left_out_as_for_training(seeing, tmp_path):
    for name in ("one.png", "deeper/two.png", ".thumbnails/three.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((6, 5), np.uint8)).save(tmp_path / name)
    (tmp_path / "._one.png").write_bytes(b"what a Mac leaves")
    names = [guess.sample for guess in predict(restore_run(seeing), [tmp_path])]
    assert names == [str(tmp_path / "deeper" / "two.png"), str(tmp_path / "one.png")]


def test_the_last_word_of_a_name_says_what_a_file_is(tmp_path):
    (tmp_path / "mine.csv").write_text("text,label\n" + "good,1\nbad,0\n" * 9 + "so,1\nno,0\n")
    data = str(tmp_path / "mine.csv")
    setup = Setup(data, "text(depth=1, dim=8, heads=2)", recipe=RECIPE)
    train_run(setup, open_task(data), tmp_path / "run")
    (tmp_path / "new.txt.csv").write_text("text\ngood\n")
    guesses = predict(restore_run(tmp_path / "run"), [tmp_path / "new.txt.csv"])
    # as plain text the head would be a sample, too
    assert [guess.sample for guess in guesses] == [f"{tmp_path / 'new.txt.csv'}:2"]


def test_other_running_text_is_read_with_the_characters_of_the_model(tmp_path):
    recipe = Recipe(epochs=8, batch_size=8, lr=2e-2)
    text, other = "abcd" * 200, "dcba" * 200
    for name, corpus in (("signs", text), ("bytes", text.encode())):
        task = NextCharacter(Corpus("abcd", "corpus", corpus, corpus, corpus), length=8)
        setup = Setup("abcd", "lm(depth=1, dim=16, heads=2)", recipe=recipe)
        train_run(setup, task, tmp_path / name)
        # b is the most frequent character here: numbers of its own would be others
        (tmp_path / "same.txt").write_text("b" * 300 + text + text)
        (tmp_path / "other.txt").write_text(other)
        (tmp_path / "new.txt").write_text(text + "é" * 9)
        same = evaluate_run(tmp_path / name, str(tmp_path / "same.txt"))
        assert same["bits"] < 0.5
        assert evaluate_run(tmp_path / name, str(tmp_path / "other.txt"))["bits"] > 2
        # a character that the model does not know is not a mistake
        new = evaluate_run(tmp_path / name, str(tmp_path / "new.txt"))
        assert same["bits"] < new["bits"] < 20


def test_data_of_another_kind_are_named_as_that(touching, seeing):
    for folder, data, said in (
        (seeing, "shapes", "the model was trained on images, but shapes is points"),
        (touching, "fashion-mnist-small", "was trained on points, but fashion-mnist-small is imag"),
        (seeing, "recall", "the model was trained on images, but recall is tokens"),
    ):
        with pytest.raises(DataError, match=said):
            evaluate_run(folder, data)


def test_a_config_that_lacks_something_is_one_sentence(seeing, tmp_path):
    whole = json.loads((seeing / "config.json").read_text())
    broken = [
        {name: x for name, x in whole.items() if name != lacking}
        for lacking in ("setup", "kind", "model", "facts")
    ]
    broken += [whole | {"setup": 1}, whole | {"setup": whole["setup"] | {"recipe": {}}}]
    for config in broken:
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(
            CheckpointError, match=r"config\.json is damaged, or of another version"
        ):
            restore_run(tmp_path)


def test_a_process_that_does_not_write_refuses_another_run_too(tmp_path):
    _refuse_another_run(tmp_path, {"setup": {}})
    task = open_task("shapes")
    train_run(Setup("shapes", SETS, recipe=RECIPE), task, tmp_path)
    before = json.loads((tmp_path / "config.json").read_text())
    _refuse_another_run(tmp_path, before)
    with pytest.raises(ValueError, match="holds a run with kind = 'points', but now it is 'text'"):
        _refuse_another_run(tmp_path, before | {"kind": "text"})


def test_a_refused_start_does_not_refuse_the_corrected_command(tmp_path):
    words = ("train", "--data", "shapes", "--epochs", 1, "--batch-size", 500, "--no-tensorboard",
             "--out", tmp_path / "run", "--model", SETS)  # fmt: skip
    # its plan is square, and inducing points are fewer than points: the first step says so
    refused = run(*words, "--operator", "mixing(tokens=64)")
    assert refused.exit_code == 2
    assert not (tmp_path / "run" / "config.json").exists()
    result = run(*words, "--operator", "sinkhorn")
    assert result.exit_code == 0, result.stderr
    assert json.loads((tmp_path / "run" / "config.json").read_text())["setup"]["operator"] == (
        "sinkhorn"
    )


def test_a_log_file_gets_a_line_per_epoch(tmp_path, monkeypatch):
    words = ("train", "--data", "shapes", "--epochs", 2, "--batch-size", 250, "--no-tensorboard",
             "--model", SETS)  # fmt: skip
    result = run(*words, "--out", tmp_path / "a")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("1/2 epoch 1: train loss 1.")
    assert lines[1].startswith("2/2 epoch 2: train loss 1.")
    assert ", accuracy 0." in lines[0]
    # and in long epochs a line every minute
    monkeypatch.setattr("bistoch.lab.progress.LINE_EVERY", 0.0)
    lines = run(*words, "--out", tmp_path / "b").stdout.splitlines()
    assert lines[0].startswith("epoch 1, step 1/4: training loss 1.")
    assert sum(line.startswith("epoch ") for line in lines) == 6
    assert lines[0].endswith(" s left)")
    # a finished run has nothing to tell but its result
    assert len(run(*words, "--out", tmp_path / "b").stdout.splitlines()) == 2


@pytest.mark.parametrize("step", [1, 5])
def test_after_an_interrupt_it_says_what_was_kept(step, tmp_path, monkeypatch):
    words = ("train", "--data", "shapes", "--epochs", 2, "--batch-size", 250, "--no-tensorboard",
             "--model", SETS, "--out", tmp_path / "run")  # fmt: skip
    shown = CLI_TRAIN._EpochProgress.__call__

    def interrupt(self, moment):
        if moment.step == step:
            raise KeyboardInterrupt
        shown(self, moment)

    monkeypatch.setattr(CLI_TRAIN._EpochProgress, "__call__", interrupt)
    result = run(*words)
    assert result.exit_code == 130
    last = result.stdout.splitlines()[-1]
    if step == 1:
        assert last.endswith("nothing is kept")
    else:
        assert "step 4 (1 epochs finished) is kept in" in last
        assert last.endswith("give the same command again to resume")
    monkeypatch.undo()
    assert run(*words).exit_code == 0


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    refused = run("train", "--data", "shapes", "--model", SETS, "--out", tmp_path / "run")
    assert refused.exit_code == 2
    assert f"{tmp_path / 'run' / 'metrics.jsonl'}: No space left on device" in refused.stderr


def test_nothing_is_chosen_by_the_test_split(tmp_path):
    day = np.datetime64("2020-01-01")
    rows = [f"{day + i},{i % 7}" for i in range(70)]
    (tmp_path / "short.csv").write_text("\n".join(["date,a", *rows]))
    model = "forecast(lookback=8, horizon=10)"
    task = open_task(str(tmp_path / "short.csv"), model)
    assert (task.count("valid"), task.count("test")) == (0, 5)
    with pytest.raises(ValueError, match=r"need at least 84 rows, .* 10 % for validation"):
        open_task(str(tmp_path / "short.csv"), model, hold_out=True)
