"""Your own folders of pictures: split evenly, never spoiled, and what is wrong is named."""

import builtins

import numpy as np
import pytest
from PIL import Image

from bistoch.lab.data import DataError, load


@pytest.fixture
def paint(tmp_path):
    """Write a picture of one colour, or grey."""

    def write(path, value, size=(4, 3)):
        path = tmp_path / "pets" / path
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = size if isinstance(value, int) else (*size, 3)
        Image.fromarray(np.full(shape, value, np.uint8)).save(path)
        return tmp_path / "pets"

    return write


def test_a_folder_with_train_and_test(paint):
    for split, count in (("train", 2), ("test", 1)):
        for i in range(count):
            paint(f"{split}/cat/{i}.png", 10 + i)
            folder = paint(f"{split}/dog/{i}.png", 20 + i)
    # what desktops and people leave behind
    (folder / "train" / "cat" / ".DS_Store").write_bytes(b"")
    (folder / "train" / "README").write_text("read me")
    paint("val/dog/7.png", 77)
    data = load(folder)
    assert (data.name, data.kind, data.classes) == ("pets", "images", ("cat", "dog"))
    assert (data.x_valid[:, 0, 0].tolist(), data.y_valid.tolist()) == ([77], [1])
    assert data.x_train.shape == (4, 4, 3)
    assert data.x_train[:, 0, 0].tolist() == [10, 11, 20, 21]
    assert data.y_train.tolist() == [0, 0, 1, 1]
    assert data.x_test[:, 0, 0].tolist() == [10, 20]


def test_a_folder_without_is_split_evenly_and_always_the_same_way(paint):
    for i in range(10):
        paint(f"cat/{i}.png", i)
        folder = paint(f"dog/{i}.png", 100 + i)
    data, again = load(folder), load(folder)
    assert data.y_test.tolist() == [0, 0, 1, 1]
    assert len(data.x_train) == 16
    seen = {*data.x_train[:, 0, 0].tolist(), *data.x_test[:, 0, 0].tolist()}
    assert seen == {*range(10), *range(100, 110)}
    assert np.array_equal(data.x_test, again.x_test)


def test_one_colour_picture_makes_all_colour(paint):
    for i in range(2):
        paint(f"cat/{i}.png", 10)
        folder = paint(f"dog/{i}.png", (1, 2, 3))
    data = load(folder)
    assert data.x_train.shape == (2, 4, 3, 3)
    assert data.x_train[:, 0, 0].tolist() == [[10, 10, 10], [1, 2, 3]]


def test_what_is_wrong_with_a_folder_is_named(paint, tmp_path):
    (tmp_path / "pets").mkdir()
    with pytest.raises(DataError, match="pets must hold one folder of images per class"):
        load(tmp_path / "pets")
    folder = paint("cat/a.png", 1)
    paint("cat/b.png", 1)
    with pytest.raises(DataError, match="at least two classes, but it has 1 samples of 1"):
        load(folder)
    paint("dog/a.png", 1, size=(4, 5))
    told = r"one size, but there are 2 .*: 4 x 3 \(2 images, such as cat.a\.png\), 4 x 5 \(1 images"
    with pytest.raises(DataError, match=told + r".*--resize fit or --resize crop"):
        load(folder)
    (folder / "dog" / "a.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"a\.png is cut or damaged, or not an image"):
        load(folder)
    whole = (folder / "cat" / "a.png").read_bytes()
    (folder / "dog" / "a.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.png is cut or damaged"):
        load(folder)
    (folder / "dog" / "a.png").unlink()
    with pytest.raises(DataError, match="the class 'dog' has no images"):
        load(folder)
    (folder / "dog" / "deeper").mkdir()
    with pytest.raises(DataError, match="deeper: a class may hold images only"):
        load(folder)
    (folder / "train").mkdir()
    with pytest.raises(DataError, match="both folders train and test, or neither, but test is"):
        load(folder)


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float32"])
def test_a_picture_of_more_bits_is_refused_and_not_spoiled(tmp_path, dtype):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for name in ("a/0", "a/1", "b/0", "b/1"):
        Image.fromarray(np.full((5, 7), 900, dtype)).save(tmp_path / f"{name}.tif")
    with pytest.raises(DataError, match=r"0\.tif \(images must have 8 bits for each colour"):
        load(tmp_path)


def test_a_picture_too_large_to_be_one(paint, monkeypatch):
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        folder = paint(name, 9)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3)
    with pytest.raises(DataError, match=r"4 of 4 files cannot be read: .*0\.png \(Image.*exceeds"):
        load(folder)


def test_a_class_only_in_test_is_named(paint):
    for path in ("train/cat/a.png", "train/dog/a.png", "test/cow/a.png"):
        folder = paint(path, 1)
    with pytest.raises(DataError, match=r"test.cow.a\.png: the label 'cow' does not occur in"):
        load(folder)


def test_pictures_without_pillow_name_the_extra(paint, monkeypatch):
    paint("cat/a.png", 1)
    folder = paint("dog/a.png", 1)
    whole = builtins.__import__

    def without_pillow(name, *words, **more):
        if name == "PIL":
            raise ImportError(name)
        return whole(name, *words, **more)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(ImportError, match=r"pip install 'bistoch\[images\]'"):
        load(folder)
