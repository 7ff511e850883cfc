"""Every run ends with a page, numbers and pictures; its numbers are right."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.lab.flow import sweeps
from bistoch.lab.flow.clusters import layers, measure_tokens
from bistoch.lab.flow.points import read_cloud


def run(*words):
    return CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(app, ["flow", *words])


def tables(folder):
    return json.loads((folder / "report.json").read_text())["tables"]


def test_points_from_a_file(tmp_path):
    np.save(tmp_path / "cloud.npy", np.random.default_rng(0).normal(size=(60, 2)))
    out = tmp_path / "out"
    result = run(
        "points", str(tmp_path / "cloud.npy"), "--eps", "0.5", "--time", "1", "--out", str(out)
    )
    assert result.exit_code == 0, result.output
    page = (out / "report.html").read_text()
    assert page.count("<img") == 3
    rows = tables(out)["W2 to the exact heat flow of the points"]["rows"]
    told = f"At t = 1 the flow is {rows[-1][1]:.3g} away from the exact heat flow of the points"
    assert page.index(told) < page.index("<img")
    assert told in result.stdout
    assert (out / "figures" / "points.gif").read_bytes().startswith(b"GIF89a")
    rows = tables(out)["W2 to the exact heat flow of the points"]["rows"]
    # as near as two draws of the truth
    assert all(row[1] < 2 * row[2] + 1e-6 for row in rows)


def test_image_keeps_its_mean_brightness_when_balanced(tmp_path):
    pytest.importorskip("PIL")
    from PIL import Image

    Image.fromarray(np.arange(0, 240, dtype=np.uint8).reshape(12, 20)).save(tmp_path / "a.png")
    out = tmp_path / "out"
    words = ("--picture", str(tmp_path / "a.png"), "--steps", "2", "--side", "10")
    result = run("image", *words, "--out", str(out))
    assert result.exit_code == 0, result.output
    rows = {row[0]: row for row in tables(out)["Brightness at the end"]["rows"]}
    _, before, after, *_ = rows["balanced (lam = 1)"]
    assert before == pytest.approx(after, abs=1e-5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("points", "nowhere.npy"), "is neither one of spiral, rings, modelnet10, nor a file"),
        (("image", "--picture", "nowhere.png"), "there is no file 'nowhere.png'"),
        (("points", "--eps", "-1"), "eps must be positive"),
        (("image", "--index", "99999"), "index must be from 0 to 3999"),
        (("image", "--contrast", "0"), "contrast must be positive"),
        (("points", "--n", "50", "--lam", "2"), "lam must be in [0, 1]"),
    ],
)
def test_mistakes_are_one_sentence(words, sentence, tmp_path):
    result = run(*words, "--out", str(tmp_path))
    assert result.exit_code == 2
    assert sentence in result.output.replace("\n", " ")


def test_csv_and_shapes(tmp_path):
    np.savetxt(tmp_path / "a.csv", [[1.0, 2.0], [3.0, 4.0]], delimiter=",")
    generator = torch.Generator().manual_seed(0)
    assert read_cloud(str(tmp_path / "a.csv"), 5, 0, generator).shape == (2, 2)
    assert read_cloud("spiral", 5, 0, generator).shape == (5, 2)
    (tmp_path / "words.csv").write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match=r"cannot read numbers from words\.csv"):
        read_cloud(str(tmp_path / "words.csv"), 5, 0, generator)
    np.save(tmp_path / "line.npy", np.zeros(3))
    with pytest.raises(ValueError, match="one point per line"):
        read_cloud(str(tmp_path / "line.npy"), 5, 0, generator)


def test_orders_without_sampling_are_those_of_the_expansion():
    from bistoch.flows import two_bumps
    from bistoch.lab.flow.figures import fitted_order

    small, large = (0.1, 0.05), (0.2, 0.1)
    assert 2.6 < fitted_order(small, sweeps.one_step_errors(two_bumps(), small)) < 3.2
    assert 1.85 < fitted_order(large, sweeps.flow_errors(two_bumps(), 0.4, large)) < 2.4
    assert 0.85 < fitted_order(large, sweeps.score_biases(two_bumps(), large)) < 1.1


def test_small_eps_freezes_in_the_sweep():
    pairs = sweeps.freezing((60,), (1e-7, 0.3))[60]
    assert pairs[0][0] < 0.05
    assert pairs[0][1] > 0.9
    assert pairs[1][0] == pytest.approx(1, abs=0.1)


def test_balanced_layers_keep_the_mean_and_collapse_more_slowly():
    x = torch.randn(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    soft = layers(x, 0.5, 3, 0.0, skip=0.0, sphere=False)
    even = layers(x, 0.5, 3, 1.0, skip=0.0, sphere=False)
    torch.testing.assert_close(even[-1].mean(0), x.mean(0), rtol=0, atol=1e-4)
    assert (soft[-1].mean(0) - x.mean(0)).abs().max() > 1e-2
    assert measure_tokens(even[1])["residual"] > measure_tokens(soft[1])["residual"]
    assert soft.shape == (4, 40, 2)


def test_tokens_that_are_one():
    same = measure_tokens(torch.ones(5, 3, dtype=torch.float64))
    assert same["clusters"] == 1
    assert same["rank"] == 0
    assert same["residual"] == pytest.approx(0)
    assert same["cosine"] == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("gaussian", "--n", "300", "--quick"),
        ("mixture", "--n", "200", "--eps", "0.1", "--quick"),
        ("fashion", "--n", "200", "--steps", "2"),
        ("cluster", "--n", "60", "--depth", "6"),
        ("image", "--steps", "2"),
    ],
)
def test_every_verb_ends_with_a_page(words, tmp_path):
    result = run(*words, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "<img" in (tmp_path / "report.html").read_text()
    if words[0] == "gaussian":
        rows = {row[0]: row for row in tables(tmp_path)["Variance at the end"]["rows"]}
        particles, recursion = rows["particles"], rows["exact recursion from their variance"]
        assert particles[2] == pytest.approx(recursion[2], rel=0.01)
