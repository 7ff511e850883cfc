"""Corrupted images: the same from the same seed, stronger step by step, and still images."""

import numpy as np
import pytest

from bistoch.lab.data import CORRUPTIONS, STRENGTHS, corrupt


@pytest.fixture(params=[(5, 12, 11), (5, 12, 11, 3)], ids=["grey", "colour"])
def images(request):
    generator = np.random.default_rng(0)
    low = generator.integers(0, 256, (request.param[0], 4, 4, *request.param[3:]))
    large = low.repeat(3, 1).repeat(3, 2)[:, :12, :11]
    return large.astype(np.uint8)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_stronger_corruption_changes_more(images, kind):
    before = images.copy()
    found = [corrupt(images, kind, strength) for strength in STRENGTHS]
    assert all(x.shape == images.shape and x.dtype == np.uint8 for x in found)
    assert np.array_equal(images, before)
    change = [np.abs(x.astype(int) - images).mean() for x in found]
    assert change == sorted(change)
    assert change[0] > 0


def test_noise_follows_the_seed_and_nothing_else_does(images):
    for kind in CORRUPTIONS:
        one, again, other = (corrupt(images, kind, 3, seed=seed) for seed in (0, 0, 1))
        assert np.array_equal(one, again)
        assert np.array_equal(one, other) == (kind != "noise")
    # every image has noise of its own
    flat = np.full((2, 9, 9), 128, np.uint8)
    assert not np.array_equal(*corrupt(flat, "noise", 1))
    assert corrupt(np.full((200, 9, 9), 128, np.uint8), "noise", 2).std() == pytest.approx(
        0.12 * 255, rel=0.02
    )


def test_blur_is_gaussian_and_keeps_an_even_image():
    point = np.zeros((1, 21, 21), np.uint8)
    point[0, 10, 10] = 255
    # weights exp(-1/2) apart for one pixel at a deviation of one
    found = corrupt(point, "blur", 3)[0].astype(float)
    assert found[10, 11] / found[10, 10] == pytest.approx(np.exp(-0.5), abs=0.02)
    assert np.array_equal(found, found.T)
    even = np.full((1, 8, 8), 77, np.uint8)
    assert np.array_equal(corrupt(even, "blur", 5), even)


def test_contrast_keeps_the_mean_of_every_channel(images):
    found = corrupt(images, "contrast", 2)
    np.testing.assert_allclose(found.mean((1, 2)), images.mean((1, 2)), atol=0.5)
    np.testing.assert_allclose(found.std((1, 2)), 0.3 * images.std((1, 2)), atol=0.5)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"kind": "fog"}, "kind must be one of noise, blur, contrast, but it is 'fog'"),
        ({"strength": 6}, "strength must be 1, 2, 3, 4 or 5, but it is 6"),
        ({"images": np.zeros((2, 4, 4))}, "images must be uint8 .* float64 of shape"),
        ({"images": np.zeros((4, 4), np.uint8)}, "images must be uint8 .* of shape"),
    ],
)
def test_mistakes_are_told(wrong, sentence):
    right = {"images": np.zeros((2, 4, 4), np.uint8), "kind": "blur", "strength": 1}
    with pytest.raises(ValueError, match=f"^corrupt: {sentence}"):
        corrupt(**(right | wrong))
