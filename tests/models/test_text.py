"""The classifier of sentences: padding and batching do not matter, order does."""

import pytest
import torch

from bistoch.models import TextConfig, TextEncoder

SENTENCES = [[5, 3, 9, 2, 7], [4], [8, 8, 1], [6, 2, 5, 10, 3, 9, 1]]


def make(operator="softmax", **changes):
    config = {"vocabulary": 11, "classes": 3, "dim": 8, "heads": 2, "dropout": 0.0} | changes
    return TextEncoder(TextConfig(**config), operator).double().eval()


def batch(sentences, length=0):
    """Sentences filled up on the right, perhaps beyond the longest."""
    length = max(length, *map(len, sentences))
    return torch.tensor([s + [0] * (length - len(s)) for s in sentences])


@pytest.mark.parametrize("pool", ["max", "mean"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    "operator", ["softmax", "sinkhorn(iters=7)", "elastic(lam=0.5)", "sliced", "lowrank", "hard"]
)
def test_the_result_depends_neither_on_padding_nor_on_the_batch(operator, pool, norm):
    model = make(operator, pool=pool, norm=norm)
    alone = torch.cat([model(torch.tensor([sentence])) for sentence in SENTENCES])
    together = model(batch(SENTENCES))
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)
    torch.testing.assert_close(model(batch(SENTENCES, 13)), alone, atol=1e-12, rtol=0)
    pairs = torch.cat([model(batch(SENTENCES[2:])), model(batch(SENTENCES[:2], 6))])
    torch.testing.assert_close(pairs.roll(2, 0), alone, atol=1e-12, rtol=0)


def test_padding_may_stand_anywhere_if_the_mask_says_so():
    model = make("sinkhorn")
    alone = model(torch.tensor([[5, 3, 9]]))
    torch.testing.assert_close(model(torch.tensor([[0, 5, 0, 3, 9]])), alone, atol=1e-12, rtol=0)
    # what stands at a hidden place does not matter
    hidden = torch.tensor([[False, True, False, True, True]])
    tokens = torch.tensor([[7, 5, 1, 3, 9]])
    torch.testing.assert_close(model(tokens, hidden), alone, atol=1e-12, rtol=0)


def test_padding_receives_no_gradient():
    model = make("sinkhorn")
    model(batch(SENTENCES)).square().sum().backward()
    assert model.embed.weight.grad[0].abs().max() == 0
    assert model.embed.weight.grad[5].abs().max() > 0


def test_order_matters():
    model = make()
    one, other = model(torch.tensor([[5, 3, 9]])), model(torch.tensor([[3, 5, 9]]))
    assert (one - other).abs().max() > 1e-3


def test_an_empty_sentence_has_finite_scores():
    model = make("sinkhorn")
    found = model(torch.tensor([[0, 0, 0], [5, 3, 9]]))
    assert found.isfinite().all()
    assert torch.equal(found[0], model.classify.bias)
    assert torch.equal(model(torch.zeros(2, 0, dtype=torch.long))[0], model.classify.bias)


@pytest.mark.parametrize(
    ("tokens", "kind", "sentence"),
    [
        (torch.tensor([[11]]), ValueError, "between 0 and 10, but they lie between 11 and 11"),
        (torch.tensor([[-1, 2]]), ValueError, "between -1 and 2"),
        (torch.tensor([1, 2]), TypeError, r"it is torch.int64 \(2,\)"),
        (torch.zeros(2, 3), TypeError, r"it is torch.float32 \(2, 3\); write tokens.long"),
        ([[1]], TypeError, "it is not one"),
    ],
)
def test_mistakes_are_told(tokens, kind, sentence):
    with pytest.raises(kind, match=f"^TextEncoder: tokens must .*{sentence}"):
        make()(tokens)
