"""OrthoTrans: the true Pearson matrix, of training rows only, and its orthogonal axes."""

import numpy as np
import pytest
import torch

from bistoch.nn import OrthoTrans
from bistoch.nn.orthotrans import lag_correlation


@pytest.fixture
def series():
    """A slow wave, a walk whose variance grows, and a noisy trend, in very different units."""
    time = torch.arange(400, dtype=torch.float64)
    noise = torch.randn(400, 3, dtype=torch.float64)
    wave = 1e-3 * ((time / 9).sin() + 0.3 * noise[:, 0])
    return torch.stack([wave, noise[:, 1].cumsum(0), 1e3 * (0.01 * time + noise[:, 2])], -1)


def published(series, length):
    """What the released code divides: the covariance by the variance of its column alone."""
    ratios = []
    for channel in series.T.numpy():
        covariance = np.cov(np.lib.stride_tricks.sliding_window_view(channel, length).T)
        ratios.append(covariance / covariance.diagonal())
    return torch.from_numpy(np.mean(ratios, 0))


def test_it_is_the_mean_pearson_matrix(series):
    windows = [np.lib.stride_tricks.sliding_window_view(c, 7) for c in series[:300].T.numpy()]
    wanted = torch.from_numpy(np.mean([np.corrcoef(w.T) for w in windows], 0))
    torch.testing.assert_close(lag_correlation(series, 7, train_rows=300), wanted)


def test_the_released_division_is_not_symmetric(series):
    theirs, ours = published(series[:300], 7), lag_correlation(series, 7, train_rows=300)
    assert torch.equal(ours, ours.T)
    assert (theirs - theirs.T).abs().max() > 1e-3
    torch.testing.assert_close(ours.diagonal(), torch.ones(7, dtype=torch.float64))
    # harmless as long as lagged variances are nearly equal
    assert (theirs - ours).abs().max() < 0.1
    # an eigensolver reads one triangle, so that the other division has other axes
    lower, upper = (torch.linalg.eigh(theirs, UPLO=part).eigenvalues for part in "LU")
    assert (lower - upper).abs().max() > 1e-4


def test_only_training_rows_are_read(series):
    changed = series.clone()
    changed[300:] = torch.randn(100, 3, dtype=torch.float64) * 1e6
    changed[350] = torch.nan
    for one, other in zip(
        OrthoTrans.fit(series, length=7, train_rows=300).buffers(),
        OrthoTrans.fit(changed, length=7, train_rows=300).buffers(),
        strict=True,
    ):
        assert torch.equal(one, other)
    # a border behind the true one lets later rows in
    other = OrthoTrans.fit(series, length=7, train_rows=360)
    assert not torch.equal(other.basis, OrthoTrans.fit(series, length=7, train_rows=300).basis)


def test_the_axes_are_orthogonal_sorted_and_decorrelate(series):
    trans = OrthoTrans.fit(series, length=7, train_rows=300).double()
    torch.testing.assert_close(
        trans.basis @ trans.basis.T, torch.eye(7).double(), atol=1e-6, rtol=0
    )
    assert (trans.eigenvalues.diff() <= 0).all()
    assert abs(trans.eigenvalues.sum() - 7) < 1e-4
    correlation = lag_correlation(series, 7, train_rows=300)
    in_axes = trans.basis @ correlation @ trans.basis.T
    torch.testing.assert_close(in_axes, trans.eigenvalues.diag(), atol=1e-5, rtol=0)


def test_forward_and_inverse(series):
    trans = OrthoTrans.fit(series, length=7, train_rows=300)
    x = torch.randn(2, 3, 16, 7)
    torch.testing.assert_close(trans.inverse(trans(x)), x)
    torch.testing.assert_close(trans(x).norm(dim=-1), x.norm(dim=-1))
    assert trans(x.double()).dtype == torch.float64


def test_units_do_not_matter_and_constant_channels_are_left_out(series):
    wanted = lag_correlation(series, 7, train_rows=300)
    torch.testing.assert_close(lag_correlation(series * 1e-9 + 1e-9, 7, train_rows=300), wanted)
    with_constant = torch.cat([series, torch.full((400, 1), 0.1).double()], -1)
    torch.testing.assert_close(lag_correlation(with_constant, 7, train_rows=300), wanted)
    # constant until the last rows: some places of the window never see it move
    late = torch.zeros(400, 1, dtype=torch.float64)
    late[297:] = 1
    torch.testing.assert_close(
        lag_correlation(torch.cat([series, late], -1), 7, train_rows=300), wanted
    )


def test_it_is_saved_and_loaded(series):
    fitted = OrthoTrans.fit(series, length=7, train_rows=300)
    fresh = OrthoTrans(7)
    assert torch.equal(fresh.basis, torch.eye(7))
    assert not list(fitted.parameters())
    fresh.load_state_dict(fitted.state_dict())
    x = torch.randn(3, 7)
    assert torch.equal(fresh(x), fitted(x))
    assert repr(fresh) == "OrthoTrans(length=7)"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train_rows": 500}, r"its shape is \(400, 3\), train_rows is 500"),
        ({"train_rows": 7}, "more training rows than a window is long"),
        ({"length": 0}, "length must be at least 1"),
        ({"series": torch.zeros(400, 3)}, "all 3 are constant .* the identity"),
        ({"series": torch.full((400, 3), torch.nan)}, "must be finite in its training rows"),
        ({"series": torch.zeros(400)}, "series must have at least 2 axes"),
    ],
)
def test_mistakes_are_told(series, change, sentence):
    arguments = {"series": series, "length": 7, "train_rows": 300} | change
    with pytest.raises(ValueError, match=f"^OrthoTrans: .*{sentence}"):
        OrthoTrans.fit(arguments.pop("series"), **arguments)
