"""`bistoch inspect` measures, swaps, reports, and says mistakes in one sentence."""

import json
import re

import pytest
import torch
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.lab.inspect import embed, load_subject, swap_heads
from bistoch.lab.inspect.measure import measure
from bistoch.lab.inspect.swap import plan_of, swap_all

TEXTS = ["the cat sits on the mat", "a big old dog runs under the red tree", "blue sky"]


def run(*words):
    runner = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"})
    return runner.invoke(app, ["inspect", *map(str, words)])


def images(folder, count=2):
    from PIL import Image

    folder.mkdir(exist_ok=True)
    for number in range(count):
        pixels = torch.randint(0, 255, (23, 31, 3), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_an_encoder_gives_a_report(models, tmp_path):
    words = [word for text in TEXTS for word in ("--text", text)]
    result = run(models["encoder"], *words, "--lam", "0.5", "--lam", "1", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "its token" in result.stdout
    assert "Balance in all heads at once" in result.stdout
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["samples"] == 3
    assert torch.tensor(found["entropy"]).shape == (2, 2)
    assert torch.tensor(found["swap_each_head"]).shape == (2, 2)
    assert list(found["swap_all"]) == ["0.5", "1"]
    assert len(found["effective_rank"]) == 3
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    # heads, depth, swap, and three plans or, where balance reveals a diagonal, four
    assert page.count("<img ") in (6, 7)
    assert page.index('<p class="finding">Layer ') < page.index("<img ")
    assert found["overloaded"][0]["token"] in page
    assert not re.search(r"""(src|href)=["']?https?:""", page)


def test_images_are_seen(models, tmp_path):
    folder = images(tmp_path / "pictures")
    result = run(models["seer"], "--images", folder, "--no-each-head", "--head", "1.0",
                 "--out", tmp_path)  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["samples"] == 2
    assert found["swap_each_head"] is None
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "No image processor came with the model" in page
    assert "Layer 1, head 0" in page


def test_a_causal_model_is_swapped_causally(models, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join([*TEXTS, ""]))
    result = run(models["writer"], "--file", file, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["causal"]
    effects = list(found["swap_all"].values())
    assert effects
    assert all(effect["loss"] > 0 for effect in effects)
    # the texts are longer than a block, so that balance is felt
    assert min(effect["cosine"] for effect in effects) < 0.9999


def test_the_numbers_are_those_of_the_model(models):
    subject = load_subject(str(models["encoder"]), TEXTS)
    found = measure(subject)
    with torch.no_grad():
        ids = subject.batches[0]["input_ids"][:1, :8]
        alone = subject.model(ids, output_attentions=True)
    plan = torch.stack(alone.attentions)[:, 0]
    torch.testing.assert_close(plan_of(subject, 0, 1, 0), plan[1, 0], atol=1e-5, rtol=1e-4)
    # of a sample that is padded in its batch, its own tokens only
    assert plan_of(subject, 2, 1, 0).shape == (4, 4)
    assert found.worst[0][0] in range(3)
    one = measure(load_subject(str(models["encoder"]), TEXTS[:1]))
    assert len(subject.tokens[0]) == 8
    torch.testing.assert_close(one.peak, plan.sum(-2).amax(-1), atol=1e-4, rtol=1e-4)
    places = plan.sum(-2).argmax(-1)
    assert one.fullest[0][1] == subject.tokens[0][int(places[0, 1])]


def test_uniform_causal_attention_is_even(models):
    subject = load_subject(str(models["writer"]), TEXTS[1:2])
    # without a difference between keys, every query spreads evenly over what it sees
    for name, weights in subject.model.named_parameters():
        if "k_proj" in name:
            weights.data.zero_()
    found = measure(subject)
    torch.testing.assert_close(found.peak, torch.ones(2, 2))
    torch.testing.assert_close(found.entropy, torch.ones(2, 2))


def test_swapping_nothing_changes_nothing(models):
    subject = load_subject(str(models["encoder"]), TEXTS)
    before = embed(subject.model, subject.batches, subject.real)
    table = swap_heads(subject, 0.0, [2, 2])
    torch.testing.assert_close(table, torch.ones(2, 2))
    effects = swap_all(subject, [0.0, 1.0])
    assert effects[0.0]["lowest"] == pytest.approx(1)
    assert effects[1.0]["lowest"] <= effects[1.0]["cosine"] < 1
    # and the model is what it was
    assert torch.equal(embed(subject.model, subject.batches, subject.real), before)


def test_a_converted_model_is_shown_as_it_is(models, tmp_path):
    import shutil

    from transformers import AutoModel

    from bistoch.integrations.huggingface import convert

    shutil.copytree(models["encoder"], tmp_path / "model")
    model = convert(AutoModel.from_pretrained(models["encoder"]), "sinkhorn(iters=200)")
    model.save_pretrained(tmp_path / "model")
    result = run(tmp_path / "model", "--text", TEXTS[1], "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "converted already" in result.stdout
    found = json.loads((tmp_path / "report.json").read_text())
    torch.testing.assert_close(
        torch.tensor(found["largest_key_load"]), torch.ones(2, 2), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize(
    ("kind", "words", "sentence"),
    [
        ("encoder", [], "give the model texts, with"),
        ("encoder", ["--text", "cat", "--images", "."], "one of the two"),
        ("encoder", ["--text", "  "], "text 1 is empty"),
        ("encoder", ["--text", "cat", "--text", ""], "text 2 is empty"),
        ("encoder", ["--text", "cat " * 40], "text 1 has 42 tokens, but"),
        ("encoder", ["--file", "no/such/file.txt"], "cannot read no/such/file.txt as text"),
        ("encoder", ["--images", "."], "takes texts; use --text or --file instead of --images"),
        ("encoder", ["--text", "cat", "--lam", "2"], "lam must be in [0, 1]"),
        ("encoder", ["--text", "cat", "--head", "9.0"], "there is no head 9.0"),
        ("encoder", ["--text", "cat", "--head", "first"], "written as layer.head"),
        ("silent", ["--text", "cat"], "has no tokenizer that can be read"),
        ("seer", ["--text", "cat"], "takes images; use --images instead of --text"),
        ("seer", ["--images", "no/such.png"], "there is no image no/such.png"),
        ("no/such/model", ["--text", "cat"], "cannot find the model 'no/such/model'"),
    ],
)
def test_a_mistake_is_one_sentence(models, tmp_path, kind, words, sentence):
    result = run(models.get(kind, kind), *words, "--out", tmp_path / "report")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.startswith("bistoch: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "report").exists()


def test_a_folder_without_images_and_a_file_that_is_none(models, tmp_path):
    result = run(models["seer"], "--images", tmp_path, "--out", tmp_path / "report")
    assert "there is no image in" in result.stderr
    (tmp_path / "fake.png").write_text("no picture")
    result = run(models["seer"], "--images", tmp_path, "--out", tmp_path / "report")
    assert "fake.png cannot be read as an image" in result.stderr
