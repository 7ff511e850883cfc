"""What is shown is what the library computes, and what the exported lines compute."""

import contextlib
import io
from dataclasses import replace

import pytest
import torch

import bistoch
from bistoch.analysis import capture, metrics
from bistoch.explorer.link import pack_pixels
from bistoch.explorer.subject import Subject, operator_text
from bistoch.explorer.text import TextSubject
from bistoch.explorer.view import change_of_output, finding, look, python_lines


def execute(lines):
    """The names that a program leaves, and what it prints."""
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(lines, names)
    return names, printed.getvalue()


def assert_lines_compute_the_view(subject, state):
    view, (names, printed) = look(subject, state), execute(python_lines(subject, state))
    torch.testing.assert_close(names["plan"], view.after.plan, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(names["column_sums"], view.after.sums, atol=1e-4, rtol=1e-4)
    assert names["entropy"].item() == pytest.approx(view.after.entropy, abs=1e-4)
    assert names["output"] == pytest.approx(view.after.output, abs=1e-4)
    assert printed.count("\n") == 1 + len(view.after.output)


def test_the_first_view_of_minilm_is_a_head_that_looks_at_one_token(minilm):
    view = look(minilm, minilm.opening)
    n = len(view.tokens)
    assert view.before.token == "[CLS]"
    assert view.before.peak > 0.9 * n
    assert view.after.peak < 1.01
    # balance reveals that every token looks at itself
    assert view.after.plan.diagonal()[1:-1].mean() > 0.5
    assert "the token [CLS] receives 10.2 of 11 units" in finding(minilm, view)


def test_the_first_view_of_the_vit_is_its_fullest_patch(vit):
    view = look(vit, vit.opening)
    assert view.before.peak == pytest.approx(max(map(max, view.peaks)))
    assert view.before.peak > 5
    assert view.after.peak < 1.1
    assert "the patch in row" in finding(vit, view)


def test_the_shipped_vit_knows_its_pictures(vit):
    with torch.no_grad():
        found = vit.model(vit.pictures / 127.5 - 1).argmax(-1)
    assert (found == torch.arange(10)).sum() >= 8


@pytest.mark.parametrize("where", ["head", "layer", "model"])
def test_lines_of_the_vit(vit, where):
    state = replace(vit.opening, where=where, lam=0.7, eps=0.5, iters=7, layer=1, picture="4")
    assert_lines_compute_the_view(vit, state)


def test_lines_of_an_own_picture(vit):
    pixels = torch.randint(0, 256, (784,), dtype=torch.uint8)
    assert_lines_compute_the_view(
        vit, replace(vit.opening, picture=pack_pixels(pixels.numpy().tobytes()))
    )


@pytest.mark.parametrize("text", ['It\'s "quoted" \\ and\ttabbed.', "<b>tags</b> & 漢字"])
def test_lines_of_minilm(minilm, text):
    state = replace(minilm.opening, text=text, where="layer", lam=0.4, layer=3, head=5)
    assert_lines_compute_the_view(minilm, state)


def test_the_plan_is_that_of_the_operator_on_the_scores_of_the_head(vit):
    state = replace(vit.opening, lam=0.6, eps=0.8, iters=4)
    block = vit.model.blocks[state.layer]
    seen = {}
    keep = block.attention.query.register_forward_hook(
        lambda module, given, result: seen.update(x=given[0])
    )
    with torch.no_grad():
        vit.model(**vit.read(state).arguments)
        keep.remove()
        query, key = block.attention._queries(seen["x"]), block.attention._keys(seen["x"])
        plan = bistoch.elastic_plan(query, key, lam=0.6, eps=0.8, iters=4)[0, state.head]
    torch.testing.assert_close(look(vit, state).after.plan, plan, atol=1e-5, rtol=1e-4)


def test_softmax_put_in_changes_nothing(vit, minilm):
    for subject in (vit, minilm):
        view = look(subject, replace(subject.opening, operator="softmax", where="model"))
        torch.testing.assert_close(view.after.plan, view.before.plan, atol=1e-5, rtol=1e-4)
        assert view.after.output == pytest.approx(view.before.output, abs=1e-4)
        assert change_of_output(view).startswith("The highest stays ")


def test_a_view_leaves_the_model_as_it_was(vit, minilm):
    for subject in (vit, minilm):
        sample = subject.read(subject.opening)
        with torch.no_grad():
            before = subject.compute(sample)
            look(subject, replace(subject.opening, where="model", lam=0.123))
            assert subject.compute(sample) == before


# they are causal, learn, or do not look at the tokens
NOT_OFFERED = {"causal_elastic", "delta", "lowrank", "mixing"}


@pytest.mark.parametrize("operator", sorted(set(bistoch.OPERATORS) - NOT_OFFERED))
def test_every_operator_that_is_offered_works(vit, operator):
    view = look(vit, replace(vit.opening, operator=operator))
    assert bool(view.after.plan.isfinite().all())
    if bistoch.OPERATORS[operator].columns == "exact":
        assert view.after.peak == pytest.approx(1, abs=1e-3)


def test_which_operators_are_offered(vit):
    assert set(bistoch.OPERATORS) - set(vit.operators) == NOT_OFFERED


def test_a_text_with_too_many_tokens_is_refused(minilm):
    with pytest.raises(ValueError, match="the text has 202 tokens, more than 96"):
        look(minilm, replace(minilm.opening, text="a " * 200))


def test_an_operator_without_end_is_refused(minilm):
    state = replace(minilm.opening, text="a " * 80, operator="quantum")
    with pytest.raises(ValueError, match="quantum takes too long for 82 tokens, more than 64"):
        look(minilm, state)


@pytest.fixture
def own_model(tmp_path):
    """A tiny causal model with a tokenizer, in a folder of the user's."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["[UNK]", "[END]", *"abcdefg"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "secret" / "tiny"
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[END]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=len(words), n_positions=32, bos_token_id=1,
        eos_token_id=1,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_a_causal_model_of_the_user(own_model, monkeypatch):
    subject = TextSubject(str(own_model))
    assert (subject.name, subject.causal, subject.heads) == ("tiny", True, [2, 2])
    assert "elastic" not in subject.operators
    assert "causal_elastic" in subject.operators
    state = replace(subject.opening, text="a b c d e f g a b c d e f", layer=1, lam=0.5)
    assert operator_text(state) == "causal_elastic(lam=0.5, eps=1.0, block=8)"
    assert sum(look(subject, state).after.output.values()) <= 1
    # only the last part of its path is shown
    assert "secret" not in python_lines(subject, state)
    monkeypatch.chdir(own_model.parent)
    assert_lines_compute_the_view(subject, state)


def test_a_model_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="explore: cannot load the model"):
        TextSubject(str(tmp_path / "nothing"))


def test_peaks_are_column_sums_of_the_captured_plans(vit):
    with torch.no_grad(), capture(vit.model, states=None) as seen:
        vit.model(**vit.read(vit.opening).arguments)
    sums = [metrics.column_sums(one.plan[0]).amax(-1).tolist() for one in seen.plans]
    assert vit.peaks(vit.opening) == [pytest.approx(row, abs=1e-4) for row in sums]


def test_the_class_of_subjects_says_what_it_wants():
    with pytest.raises(TypeError, match="abstract"):
        Subject()
