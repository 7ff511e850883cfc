"""A followed flow goes on where it was killed, and says what went wrong."""

import pytest
import torch
from rich.console import Console

from bistoch.lab.flow import trajectory
from bistoch.lab.flow.figures import fitted_order
from bistoch.lab.flow.trajectory import follow

QUIET = Console(quiet=True)


def variance(state):
    return {"variance": state.particles.var().item()}


def cloud(n=41):
    return torch.randn(n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    options = {"keep": [0.5], "console": QUIET, "tol": 1e-9}
    whole = follow("line", cloud(), 1.0, 0.1, measure=variance, **options)
    monkeypatch.setattr(trajectory, "SAVE_EVERY", 0.0)

    def dies(state):
        if state.step == 6:
            raise KeyboardInterrupt
        return variance(state)

    with pytest.raises(KeyboardInterrupt):
        follow("line", cloud(), 1.0, 0.1, measure=dies, folder=tmp_path, **options)
    (kept,) = tmp_path.iterdir()
    seen = []

    def counts(state):
        seen.append(state.step)
        return variance(state)

    resumed = follow("line", cloud(), 1.0, 0.1, measure=counts, folder=tmp_path, **options)
    assert seen == [6, 7, 8, 9, 10]
    assert resumed.times == pytest.approx(whole.times)
    assert resumed.curve("variance") == pytest.approx(whole.curve("variance"), rel=1e-6)
    assert list(resumed.snapshots) == pytest.approx(list(whole.snapshots))
    assert not kept.exists()


def test_another_run_does_not_take_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(trajectory, "SAVE_EVERY", 0.0)

    def dies(state):
        if state.step == 2:
            raise KeyboardInterrupt
        return {}

    options = {"keep": (), "console": QUIET, "folder": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        follow("line", cloud(), 1.0, 0.1, measure=dies, lam=1.0, **options)
    assert len(list(tmp_path.iterdir())) == 1
    seen = []

    def counts(state):
        seen.append(state.step)
        return {}

    # other particles, another elasticity, another eps
    follow("line", cloud() + 1, 1.0, 0.1, measure=counts, lam=1.0, **options)
    follow("line", cloud(), 1.0, 0.1, measure=counts, lam=0.5, **options)
    follow("line", cloud(), 1.0, 0.5, measure=counts, lam=1.0, **options)
    assert seen == [*range(11), *range(11), *range(3)]


def test_times_are_kept_once_and_warnings_told():
    kept = follow("line", cloud(9), 1.0, 0.25, measure=variance, keep=[0.375], console=QUIET)
    assert list(kept.snapshots) == [0.0, 0.5, 1.0]
    frozen = follow("line", cloud(9), 1e-6, 1e-6, measure=variance, keep=(), console=QUIET)
    assert any("frozen" in sentence for sentence in frozen.warnings)


def test_fitted_order():
    assert fitted_order([0.1, 0.2, 0.4], [0.001, 0.008, 0.064]) == pytest.approx(3)
