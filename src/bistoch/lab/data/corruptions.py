"""Corrupted images: noise, blur and low contrast at five strengths, made from a seed."""

import numpy as np
from jaxtyping import UInt8

CORRUPTIONS = ("noise", "blur", "contrast")
STRENGTHS = (1, 2, 3, 4, 5)
# noise and contrast are those of Hendrycks and Dietterich (2019); the blur is for small images
_DEVIATION = (0.08, 0.12, 0.18, 0.26, 0.38)
_RADIUS = (0.5, 0.75, 1.0, 1.5, 2.0)
_CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)


def corrupt(
    images: UInt8[np.ndarray, "n h w *c"], kind: str, strength: int, *, seed: int = 0
) -> UInt8[np.ndarray, "n h w *c"]:
    """Images with noise, blur or low contrast; the same seed makes the same images.

    Args:
        images: grey (n, h, w) or with channels (n, h, w, c).
        kind: "noise" adds Gaussian noise to every value, "blur" is a Gaussian blur, "contrast"
            pulls an image to its mean.
        strength: 1 (slight) to 5 (severe).
        seed: of the noise; every kind and strength draws its own.

    >>> grey = np.full((1, 4, 4), 100, np.uint8)
    >>> [int(corrupt(grey, kind, 3).std() > 0) for kind in CORRUPTIONS]
    [1, 0, 0]

    Reference: Hendrycks, Dietterich, Benchmarking neural network robustness to common corruptions
    and perturbations, ICLR 2019.
    """
    if kind not in CORRUPTIONS:
        known = ", ".join(CORRUPTIONS)
        raise ValueError(f"corrupt: kind must be one of {known}, but it is {kind!r}")
    if strength not in STRENGTHS:
        raise ValueError(f"corrupt: strength must be 1, 2, 3, 4 or 5, but it is {strength!r}")
    if images.ndim not in (3, 4) or images.dtype != np.uint8:
        raise ValueError(
            "corrupt: images must be uint8 (n, h, w) or (n, h, w, c), but they are "
            f"{images.dtype} of shape {images.shape}"
        )
    x = images.astype(np.float32) / 255
    level = strength - 1
    if kind == "noise":
        random = np.random.default_rng([seed, CORRUPTIONS.index(kind), strength])
        x = x + _DEVIATION[level] * random.standard_normal(x.shape, np.float32)
    elif kind == "blur":
        x = _blurred(_blurred(x, _RADIUS[level], 1), _RADIUS[level], 2)
    else:
        mean = x.mean((1, 2), keepdims=True)
        x = mean + _CONTRAST[level] * (x - mean)
    return np.round(255 * x.clip(0, 1)).astype(np.uint8)


def _blurred(x: np.ndarray, deviation: float, axis: int) -> np.ndarray:
    """A Gaussian blur along one axis; beyond the edge the last pixel is repeated."""
    reach = int(np.ceil(3 * deviation))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / deviation) ** 2)
    weights = (weights / weights.sum()).astype(np.float32)
    padding = [(reach, reach) if place == axis else (0, 0) for place in range(x.ndim)]
    padded, length = np.pad(x, padding, mode="edge"), x.shape[axis]
    shifted = (
        weight * padded.take(range(start, start + length), axis)
        for start, weight in enumerate(weights)
    )
    return np.asarray(sum(shifted))
