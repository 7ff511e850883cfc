"""Data from a seed: the same every time, and solvable by the rule that made them."""

import numpy as np
import pytest
import torch

from bistoch.lab.data import DataError, load, point_shapes, recall
from bistoch.lab.data.synthetic import SHAPES, SURFACES


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ["shapes", "recall"])
def test_the_sets_of_the_table_are_always_the_same(name):
    torch.manual_seed(1)
    first = load(name)
    torch.manual_seed(2)
    second = load(name)
    assert np.array_equal(first.x_train, second.x_train)
    assert np.array_equal(first.y_test, second.y_test)
    assert not np.array_equal(first.x_train[: len(first.x_test)], first.x_test)


def test_another_seed_is_another_set():
    one, two = (point_shapes(5, 5, generator=seeded(seed)) for seed in (1, 2))
    assert not np.array_equal(one.x_train, two.x_train)


def test_clouds_are_centred_and_touch_the_unit_sphere():
    data = point_shapes(11, 7, points=13, generator=seeded(0))
    for clouds in (data.x_train, data.x_test):
        assert clouds.dtype == np.float32
        assert np.abs(clouds.mean(1)).max() < 1e-6
        assert np.abs(np.linalg.norm(clouds, axis=-1).max(1) - 1).max() < 1e-6


def test_classes_are_shared_out_evenly():
    data = point_shapes(25, 10, generator=seeded(0))
    assert np.bincount(data.y_train).tolist() == [5] * 5
    assert np.bincount(data.y_test).tolist() == [2] * 5


def test_each_solid_has_its_surface():
    # without noise and with many points, each solid is told by invariants of rotation
    data = point_shapes(50, 5, points=4099, noise=0.0, generator=seeded(0))
    radii = np.linalg.norm(data.x_train, axis=-1)
    spread = {name: radii[data.y_train == c].std(1) for c, name in enumerate(data.classes)}
    nearest = {name: radii[data.y_train == c].min(1) for c, name in enumerate(data.classes)}
    # the mean of the points is off by about 1/sqrt(4099), and all radii with it
    near = pytest.approx
    assert spread["sphere"].max() < 0.02 < min(s.min() for n, s in spread.items() if n != "sphere")
    # the middle of a side, over the corner
    assert nearest["cube"] == near(1 / np.sqrt(3), abs=0.05)
    # the mantle, over the rim
    assert nearest["cylinder"] == near(1 / np.sqrt(2), abs=0.05)
    # the hole, over the outside
    assert nearest["torus"] == near(0.6 / 1.4, abs=0.05)


def test_points_are_spread_evenly_over_a_cone_and_a_cylinder():
    cylinder, cone = (SURFACES[SHAPES.index(name)](40009, seeded(0)) for name in SHAPES[2:4])
    radius, height = cone[:, :2].norm(dim=1), cone[:, 2]
    base = height == -1
    assert torch.allclose(height[~base], 1 - 2 * radius[~base], atol=1e-5)
    # shares of area; four standard deviations of a share are 0.01
    assert base.double().mean().item() == pytest.approx(1 / (1 + 5**0.5), abs=0.01)
    assert (radius < 0.5).double().mean().item() == pytest.approx(0.25, abs=0.01)
    lids = cylinder[:, 2].abs() == 1
    assert lids.double().mean().item() == pytest.approx(1 / 3, abs=0.01)
    assert torch.allclose(cylinder[~lids, :2].norm(dim=1), torch.ones(()))


def test_recall_can_be_solved_by_looking():
    data = recall(101, 53, pairs=5, keys=7, values=3, generator=seeded(0))
    assert data.x_train.shape == (101, 11)
    for x, y in zip(data.x_train, data.y_train, strict=True):
        keys, values = x[:-1:2], x[1::2]
        assert len(set(keys.tolist())) == 5
        assert keys.max() < 7 <= values.min()
        (place,) = np.flatnonzero(keys == x[-1])
        assert values[place] - 7 == y


def test_bad_sizes_are_named():
    with pytest.raises(DataError, match=r"recall: pairs must lie in 1 \.\. 4, .* but it is 5"):
        recall(3, 2, pairs=5, keys=4)
    with pytest.raises(DataError, match="point_shapes: points must be at least 1, but it is 0"):
        point_shapes(3, 2, points=0)
