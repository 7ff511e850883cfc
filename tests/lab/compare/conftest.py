"""Images of two classes, dark and bright, as a file of a user."""

import numpy as np
import pytest


@pytest.fixture
def pictures(tmp_path):
    generator = np.random.default_rng(0)
    y = np.arange(50) % 2
    x = generator.integers(0, 60, (50, 6, 5), np.uint8)
    x[y == 1, :3] += 180
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:],
             classes=np.array(["<script>alert(1)</script>", "b"]))  # fmt: skip
    return str(path)
