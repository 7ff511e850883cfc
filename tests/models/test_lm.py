"""The language model: nothing from the future, positions by difference, other operators refused."""

import pytest
import torch

from bistoch import OPERATORS
from bistoch.models import LanguageConfig, LanguageModel
from bistoch.models.lm import rotate
from bistoch.nn import Softmax

CAUSAL = [name for name, row in OPERATORS.items() if row.causal]
LENGTH = 13


def make(operator="softmax", **changes):
    config = {"vocabulary": 11, "depth": 2, "dim": 8, "heads": 2} | changes
    return LanguageModel(LanguageConfig(**config), operator).double().eval()


@pytest.mark.parametrize("operator", CAUSAL)
def test_no_token_sees_a_later_one(operator):
    model = make(f"mixing(tokens={LENGTH}, lam=0.5)" if operator == "mixing" else operator)
    tokens = torch.randint(11, (2, LENGTH))
    before = model(tokens)
    for place in (0, 6, LENGTH - 1):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 11
        after = model(changed)
        torch.testing.assert_close(after[:, :place], before[:, :place], atol=1e-12, rtol=0)
        assert (after[:, place] - before[:, place]).abs().max() > 1e-6


@pytest.mark.parametrize("operator", [name for name in OPERATORS if name not in CAUSAL])
def test_operators_that_see_the_future_are_refused(operator):
    sentence = f"must be causal, but under '{operator}' a token sees later ones; use one of softmax"
    with pytest.raises(ValueError, match=f"^LanguageModel: operator {sentence}"):
        make(operator)


def test_a_module_of_your_own_must_say_that_it_is_causal():
    class Own(torch.nn.Module):
        def forward(self, query, key, value, *, mask, query_mask, key_mask):
            return Softmax()(query, key, value, mask=mask)

        def plan(self, query, key, *, mask, query_mask, key_mask):
            return Softmax().plan(query, key, mask=mask)

    with pytest.raises(ValueError, match="under 'Own' a token sees later ones"):
        make(Own())
    Own.causal = True
    tokens = torch.randint(11, (2, 5))
    ours, theirs = make(), make(Own())
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(ours(tokens), theirs(tokens))


def test_padding_at_the_end_is_invisible():
    model = make("sink")
    tokens = torch.randint(11, (1, 7))
    mask = torch.tensor([[True] * 7 + [False] * 3])
    padded = model(torch.cat([tokens, torch.zeros(1, 3, dtype=torch.long)], -1), mask)
    torch.testing.assert_close(padded[:, :7], model(tokens), atol=1e-12, rtol=0)


def test_products_of_turned_tokens_depend_on_the_difference_of_positions():
    query, key = torch.randn(2, 6, dtype=torch.float64)
    products = rotate(query.expand(7, 6)) @ rotate(key.expand(7, 6)).T
    for shift in range(-6, 7):
        same = products.diagonal(shift)
        torch.testing.assert_close(same, same[:1].expand_as(same))
    assert (products.diagonal(1)[0] - products.diagonal(-1)[0]).abs() > 1e-3
    torch.testing.assert_close(rotate(query[None])[0], query)


def test_low_precision_counts_far_positions():
    x = torch.ones(5000, 4)
    exact, low = rotate(x.double()), rotate(x.bfloat16())
    assert low.dtype == torch.bfloat16
    assert (exact - low).abs().max() < 0.01


def test_it_learns_a_periodic_text_and_goes_on_with_it():
    model = LanguageModel(LanguageConfig(vocabulary=5, depth=1, dim=16, heads=2))
    text = torch.tensor([0, 1, 2, 1, 3, 4] * 5)[None]
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(80):
        scores = model(text[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), text[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # what follows 1 depends on what came before it
    assert model.generate(text[:, :8], 12, temperature=0).tolist() == text[:, :20].tolist()


def test_chance_comes_from_the_generator():
    model, start = make(), torch.tensor([[1, 2]])
    seeds = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
    drawn = [model.generate(start, 9, generator=seed) for seed in seeds]
    assert drawn[0].shape == (1, 11)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


CUTS = {"token by token": [1] * LENGTH, "in pieces": [5, 1, 7], "at once": [LENGTH]}
STEPS = ["softmax", "sink(learn='head')", "entmax", "causal_elastic(block=4)",
         "causal_elastic(block=4, lam=0.3, learn='head')"]  # fmt: skip


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize("operator", STEPS)
@pytest.mark.parametrize("positions", [None, LENGTH])
def test_a_text_read_in_steps_is_the_text_read_at_once(operator, cuts, positions):
    model = make(operator, positions=positions)
    tokens = torch.randint(11, (2, LENGTH))
    past, rows = None, []
    for piece in tokens.split(cuts, -1):
        scores, past = model.step(piece, past)
        rows.append(scores)
    torch.testing.assert_close(torch.cat(rows, 1), model(tokens), atol=1e-12, rtol=1e-12)
    assert all(one.key.shape[-2] == LENGTH for one in past)


@pytest.mark.parametrize("operator", [*STEPS, "delta", "sigmoid"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_is_generated_with_and_without_cache(operator, temperature):
    model, start = make(operator), torch.randint(11, (3, 5))
    drawn = [
        model.generate(
            start, 20, temperature=temperature, cache=cache,
            generator=torch.Generator().manual_seed(0),
        )
        for cache in (False, True)
    ]  # fmt: skip
    assert torch.equal(*drawn)


def test_a_cache_reads_every_token_once(monkeypatch):
    model, read = make("causal_elastic"), []
    whole = LanguageModel.step

    def count(self, tokens, past=None):
        read.append(tokens.shape[-1])
        return whole(self, tokens, past)

    monkeypatch.setattr(LanguageModel, "step", count)
    model.generate(torch.randint(11, (1, 5)), 4)
    assert read == [5, 1, 1, 1]


def test_an_operator_without_steps_says_so():
    model = make("delta")
    assert not model.can_step
    with pytest.raises(NotImplementedError, match=r"delta.* has no step.*compute the whole text"):
        model.step(torch.randint(11, (1, 5)))


def test_learned_positions_end():
    model = make(positions=7)
    changed = make(positions=7)
    changed.load_state_dict(model.state_dict())
    changed.positions.weight.data[3] += torch.randn(8)
    tokens = torch.randint(11, (1, 7))
    before, after = model(tokens), changed(tokens)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])
    with pytest.raises(ValueError, match="7 learned positions, but the text has 8"):
        model.generate(tokens, 2)
    # what does not turn need not come in pairs
    assert make(positions=7, dim=6).config.dim == 6
    with pytest.raises(ValueError, match="positions must be at least 1, but it is 0"):
        make(positions=0)


@pytest.mark.parametrize("temperature", [-1.0, float("nan"), float("inf")])
def test_a_temperature_is_a_number_from_zero_on(temperature):
    with pytest.raises(ValueError, match="temperature must be a number from 0 on"):
        make().generate(torch.tensor([[1]]), 1, temperature=temperature)
    with pytest.raises(ValueError, match="at least one, but there is none"):
        make().generate(torch.zeros(1, 0, dtype=torch.long), 1)


def test_some_tokens_are_avoided():
    model, start = make(), torch.randint(11, (4, 3))
    drawn = model.generate(start, 30, temperature=5.0, avoid=[0, 7])[:, 3:]
    assert not ((drawn == 0) | (drawn == 7)).any()


def test_a_head_turns_in_pairs():
    with pytest.raises(ValueError, match=r"even number of features.*dim / heads is 3; .*dim=8"):
        make(dim=6)
