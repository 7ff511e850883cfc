"""Your own arrays: read like any other data, and what is wrong is named with its place."""

import numpy as np
import pytest

from bistoch.lab.data import DataError, load

N = np.random.default_rng(0)
IMAGES = {
    "x_train": N.integers(0, 256, (7, 5, 3), np.uint8),
    "y_train": np.array([0, 1, 2, 0, 1, 2, 0]),
    "x_test": N.integers(0, 256, (2, 5, 3), np.uint8),
    "y_test": np.array([2, 1]),
}
POINTS = IMAGES | {"x_train": N.normal(size=(7, 11, 3)), "x_test": N.normal(size=(2, 11, 3))}


@pytest.fixture
def save(tmp_path):
    def write(arrays):
        np.savez(tmp_path / "my.npz", **arrays)
        return tmp_path / "my.npz"

    return write


def test_arrays_of_images(save):
    data = load(save(IMAGES))
    assert (data.name, data.kind, data.classes) == ("my", "images", ("0", "1", "2"))
    for key, array in IMAGES.items():
        assert np.array_equal(getattr(data, key), array)
    assert data.y_train.dtype == np.int64


def test_arrays_of_points_with_words_and_a_valid_split(save):
    words = {"y_train": np.array(list("abcabca")), "y_test": np.array(["c", "a"])}
    valid = {"x_valid": POINTS["x_test"], "y_valid": np.array(["b", "b"])}
    data = load(str(save(POINTS | words | valid)))
    assert (data.kind, data.classes) == ("points", ("a", "b", "c"))
    assert data.x_train.dtype == np.float32
    assert (data.y_test.tolist(), data.y_valid.tolist()) == ([2, 0], [1, 1])


def test_classes_may_be_named(save):
    assert load(save(IMAGES | {"classes": np.array(["x", "y", "z"])})).classes == ("x", "y", "z")


def without(*keys):
    return {key: array for key, array in IMAGES.items() if key not in keys}


NAN = POINTS["x_test"].copy()
NAN[1, 3, 2] = np.nan
BAD_ARRAYS = {
    "missing": (without("x_test", "y_test"), "but x_test, y_test are missing; it has x_train, y_"),
    "one missing": (without("y_train"), "but y_train is missing"),
    "half a valid": (IMAGES | {"x_valid": IMAGES["x_test"]}, "x_valid and y_valid belong together"),
    "floats": (
        IMAGES | {"x_train": np.ones((7, 5, 5))},
        r"x_train must be images, .* but it is float64 \(7, 5, 5\); .*\(255 \* x\)",
    ),
    "axis": (IMAGES | {"x_train": IMAGES["x_train"][..., None]}, r"drop the last axis with x\["),
    "colours first": (
        IMAGES | {"x_train": np.ones((7, 3, 5, 5), np.uint8)},
        r"put colours last with x.transpose\(0, 2, 3, 1\)",
    ),
    "other samples": (
        IMAGES | {"x_test": np.ones((2, 5, 4), np.uint8)},
        r"x_test must be like those of x_train, uint8 \(5, 3\), but they are uint8 \(5, 4\)",
    ),
    "empty": (
        IMAGES | {"x_test": IMAGES["x_test"][:0], "y_test": IMAGES["y_test"][:0]},
        r"x_test must not be empty, but its shape is \(0, 5, 3\)",
    ),
    "labels of others": (
        IMAGES | {"y_test": np.array([1, 1, 1])},
        r"one label for each of the 2 samples of x_test, but its shape is \(3,\)",
    ),
    "floating labels": (IMAGES | {"y_test": np.ones(2)}, "y_test must hold whole numbers or words"),
    "negative": (IMAGES | {"y_test": np.array([1, -1])}, r"y_test, row 1: .* 0 \.\. 2, .* is -1"),
    "too high": (IMAGES | {"y_test": np.array([3, 0])}, r"y_test, row 0: .*classes of train, .* 3"),
    "unnamed": (
        IMAGES | {"classes": np.array(["x", "y"])},
        r"y_train, row 2: labels must lie in 0 \.\. 1, the 2 classes named, but it is 2",
    ),
    "one class": (
        IMAGES | {"y_train": np.ones(7, int), "y_test": np.ones(2, int)},
        "y_train must have samples of at least two classes, but all 7 are of class 1",
    ),
    "years": (
        IMAGES | {"y_train": 2**20 + IMAGES["y_train"]},
        r"number the classes from zero, .* 7 samples of 3 classes; number them with numpy\.unique",
    ),
    "a name alone": (
        IMAGES | {"classes": np.array("x")},
        r"different names, but its shape is \(\)",
    ),
    "equal names": (IMAGES | {"classes": np.array(list("xyx"))}, r"\(3,\) with 2 different"),
    "too large": (POINTS | {"x_test": 1e300 * POINTS["x_test"]}, "row 0: points must be finite in"),
    "nan": (POINTS | {"x_test": NAN}, "x_test, row 1: points must be finite"),
    "new word": (
        IMAGES | {"y_train": np.array(list("abababa")), "y_test": np.array(["a", "q"])},
        "y_test, row 1: the label 'q' does not occur in train, whose classes are \\('a', 'b'\\)",
    ),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_what_is_wrong_with_arrays_is_named(save, case):
    arrays, said = BAD_ARRAYS[case]
    path = save(arrays)
    with pytest.raises(DataError, match=said) as told:
        load(path)
    assert str(told.value).startswith(str(path))
    assert "\n" not in str(told.value)
