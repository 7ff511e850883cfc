"""From a folder of any pictures to a model and its predictions, by the command line."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.lab.train import open_task, restore_run
from bistoch.lab.train.patches import chosen_patch, patch_for


def run(*words):
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, [str(w) for w in words])


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for number in range(20):
        name = "ab"[number % 2]
        (folder / name).mkdir(exist_ok=True)
        shape = (20 + number, 30) if number % 5 else (24, 24, 3)
        pixels = generator.integers(0, 90, shape, np.uint8) + 160 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    (folder / "a" / "broken.jpg").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    result = run("train", "--data", photos, "--resize", "fit", "--corrupt", "skip", "--epochs", 1,
                 "--batch-size", 8, "--model", "vit(depth=1, dim=8, heads=2)",
                 "--no-tensorboard", "--out", out)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "1 of 21 files cannot be read and are skipped: a/broken.jpg." in result.stdout
    assert "images are grey: all are read as RGB." in result.stdout
    return out


def test_a_run_on_scaled_pictures_knows_how_and_finds_its_patch(trained):
    config = json.loads((trained / "config.json").read_text())
    assert config["facts"]["resize"] == "fit"
    height, width = config["model"]["image"]
    assert (height % 8, width % 8) == (0, 0)
    assert config["model"]["patch"] == list(patch_for((height, width)))
    assert run("eval", trained, "--json").exit_code == 0


def test_predict_scales_as_in_training_and_names_what_it_skips(trained, photos, tmp_path):
    refused = run("predict", trained, photos)
    assert refused.exit_code == 2
    assert "broken.jpg is cut or damaged" in refused.stderr
    out = tmp_path / "found.csv"
    result = run("predict", trained, photos, "--corrupt", "skip", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "broken.jpg" in result.stderr
    assert "skipped" in result.stderr
    with out.open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 20
    assert {row["label"] for row in rows} <= {"a", "b"}
    assert [file.name for file in tmp_path.iterdir()] == ["found.csv"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "all images must have one size, but there are"),
        (("--resize", "fit"), "broken.jpg is cut or damaged"),
        (("--image-size", "32"), "a size of 32 x 32 needs a way to get there"),
        (("--resize", "fit", "--image-size", "big"), "a size is written as 64"),
        (("--resize", "crop", "--corrupt", "skip", "--operator", "delta"), "causal operator"),
        (("--resize", "crop", "--corrupt", "skip", "--model", "vit(patch=(7,7))"), "patch"),
    ],
)
@pytest.mark.parametrize("command", ["train", "compare"])
def test_what_does_not_fit_is_refused_before_anything_is_written(
    command, words, sentence, photos, tmp_path
):
    words = [word for word in words if command == "train" or word != "--operator"]
    result = run(command, *words, "--data", photos, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert not (tmp_path / "out").exists()


def test_one_sample_goes_through_the_model_before_a_folder_is_made(tmp_path, monkeypatch):
    from bistoch.lab.train import Setup, train_run
    from bistoch.models import ViT

    def fail(self, images):
        raise ValueError(f"no room for {len(images)} image")

    monkeypatch.setattr(ViT, "forward", fail)
    setup = Setup("fashion-mnist-small", "vit(depth=1, dim=8, heads=2)")
    with pytest.raises(ValueError, match="no room for 1 image"):
        train_run(setup, open_task(setup.data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_patches_follow_the_size_unless_they_are_named():
    for size in ((28, 28), (32, 32), (64, 64), (96, 64), (224, 224), (17, 19)):
        tall, wide = patch_for(size)
        assert size[0] % tall == size[1] % wide == 0
        assert size[0] // tall * (size[1] // wide) <= 256
    assert chosen_patch("vit_stripes", {"image": (28, 28)}) == {}
    assert chosen_patch("text(depth=1)", {}) == {}


def test_another_size_without_resize_says_what_to_do(tmp_path):
    from bistoch.lab.train import Recipe, Setup, predict, train_run

    task = open_task("fashion-mnist-small")
    for kept in (task.samples, task.labels):
        kept["train"] = kept["train"][:9]
    setup = Setup("fashion-mnist-small", "vit(depth=1, dim=8, heads=2)", recipe=Recipe(epochs=1))
    train_run(setup, task, tmp_path / "run")
    Image.fromarray(np.zeros((5, 9), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="scale it with --resize fit or --resize crop"):
        predict(restore_run(tmp_path / "run"), [tmp_path / "a.png"])
    result = run("predict", tmp_path / "run", tmp_path / "a.png", "--resize", "crop")
    assert result.stdout.startswith("sample,label,probability\n")
