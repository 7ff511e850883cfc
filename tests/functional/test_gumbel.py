"""Gumbel noise on the scores: repeatable, differentiable, and fair."""

import torch

import bistoch


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_the_generator_decides():
    scores = torch.randn(3, 5, 5)
    one, same, other = (
        bistoch.gumbel_balance(scores, generator=seeded(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_without_noise_it_is_balance():
    scores = torch.randn(3, 5, 5)
    torch.testing.assert_close(
        bistoch.gumbel_balance(scores, noise=0.0), bistoch.balance(scores, iters=20)
    )


def test_equal_scores_give_every_permutation_equally_often():
    plans = bistoch.gumbel_balance(
        torch.zeros(3000, 3, 3), generator=seeded(0), eps=0.05, iters=200
    )
    codes = plans.argmax(-1) @ torch.tensor([9, 3, 1])
    counts = torch.unique(codes, return_counts=True)[1]
    permutations = counts[counts > 300]
    assert len(permutations) == 6
    assert (permutations - 500).abs().max() < 100


def test_gradient_reaches_the_scores():
    scores = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda s: bistoch.gumbel_balance(s, generator=seeded(0), iters=5), (scores,)
    )
