"""A verdict tells a difference from noise, and does not say what it cannot know."""

from bistoch.lab.compare.summary import verdict
from bistoch.lab.train import open_task


def test_a_verdict_tells_a_difference_from_noise(row):
    task = open_task("shapes")
    assert task.count("test") == 500
    plain = row("softmax", 0.885, 0.895, 0.875)
    # the same step on every seed is one, however far the seeds lie apart
    better, worse = row("sinkhorn", 0.905, 0.916, 0.894), row("hard", 0.865, 0.874, 0.856)
    noisy = row("elastic", 0.905, 0.885, 0.885)
    said = verdict([plain, better, worse, noisy], task)
    assert "sinkhorn is better than softmax by 2.0 points (95 % interval: 1.5 to 2.5)." in said
    assert "hard is worse than softmax by 2.0 points" in said
    assert "elastic against softmax: inconclusive; over 3 seeds" in said
    # a score that is better when smaller
    task.larger_is_better = False
    assert "sinkhorn is worse than softmax" in verdict([plain, better], task)


def test_a_verdict_does_not_say_what_it_cannot_know(row):
    task = open_task("shapes")
    assert "one seed" in verdict([row("softmax", 0.8), row("sinkhorn", 0.9)], task)
    assert verdict([row("softmax", 0.8, 0.8)], task) == ""
    assert verdict([row("softmax", None), row("sinkhorn", None)], task) == ""
    # softmax diverged: the first that did not is what the others are compared with
    said = verdict(
        [row("softmax", None, None), row("hard", 0.5, 0.6), row("delta", 0.6, 0.5)], task
    )
    assert said.startswith("delta against hard: inconclusive")
    # only seeds that both have are compared
    assert "one seed" in verdict([row("softmax", 0.8, None), row("hard", 0.9, 0.9)], task)
    # two seeds that agree to the last of few samples are no proof
    assert "inconclusive" in verdict([row("softmax", 0.8, 0.7), row("hard", 0.804, 0.704)], task)
