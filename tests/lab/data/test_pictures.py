"""Folders of pictures of several sizes, grey and colour, with damaged files among them."""

import numpy as np
import pytest
from PIL import Image

from bistoch.lab.data import DataError, Pictures, load, read_size
from bistoch.lab.data.pictures import resize_image


@pytest.fixture
def photos(tmp_path):
    """Six pictures of two classes and three sizes, some grey, one cut and one that is none."""
    generator = np.random.default_rng(0)
    for number, (height, width) in enumerate([(40, 60), (40, 60), (80, 120), (30, 30)] * 3):
        folder = tmp_path / "photos" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        shape = (height, width) if number % 3 else (height, width, 3)
        pixels = generator.integers(0, 255, shape, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    whole = (tmp_path / "photos" / "cat" / "1.png").read_bytes()
    (tmp_path / "photos" / "cat" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "photos" / "dog" / "words.png").write_text("no picture")
    return tmp_path / "photos"


def test_all_files_that_cannot_be_read_are_listed_at_once(photos):
    with pytest.raises(DataError) as told:
        load(photos, pictures=Pictures("fit"))
    sentence = str(told.value)
    assert "2 of 14 files cannot be read" in sentence
    assert "words.png (its kind is unknown)" in sentence
    assert "cut.png (" in sentence
    assert sentence.endswith("leave it out with --corrupt skip")


def test_damaged_files_are_skipped_as_asked(photos):
    data = load(photos, pictures=Pictures("crop", corrupt="skip"))
    assert len(data.x_train) + len(data.x_test) == 12
    # the median is 40 x 60, and sides are rounded to multiples of eight
    assert data.x_train.shape[1:] == (40, 64, 3)
    assert data.notes == (
        "2 of 14 files cannot be read and are skipped: dog/words.png, cat/cut.png.",
        "8 of 12 images are grey: all are read as RGB.",
        "Images are scaled to 40 x 64 (height x width, crop).",
    )


def test_sizes_are_named_before_anything_is_decoded(photos):
    (photos / "cat" / "cut.png").unlink()
    (photos / "dog" / "words.png").unlink()
    with pytest.raises(DataError, match=r"there are 3 \(height x width\): 40 x 60 \(6 images") as e:
        load(photos)
    assert "80 x 120 (3 images, such as dog/10.png)" in str(e.value)
    data = load(photos, pictures=Pictures("fit", (16, 24)))
    assert data.x_train.shape[1:] == (16, 24, 3)


def test_fit_keeps_all_and_crop_fills_all():
    # a white picture, three times as wide as high, with black ends
    image = np.full((10, 30), 255, np.uint8)
    image[:, :5] = image[:, -5:] = 0
    crop, fit = (resize_image(image, how, (10, 10)) for how in ("crop", "fit"))
    # crop takes the middle, which is white
    assert crop.min() > 250
    # fit shows the ends, and fills above and below with the mean
    assert fit[5, 0] < 60
    assert fit[0, 5] == fit[-1, 5] == round(image.mean())
    colour = resize_image(np.stack([image, image, image // 2], -1), "fit", (10, 10))
    assert colour[0, 0].tolist() == [170, 170, 85]
    assert resize_image(image, "fit", (10, 30)) is image


def test_sizes_as_words():
    assert read_size(" 48 x 64 ") == (48, 64)
    for text in ("0", "12x0", "axb", "-3"):
        with pytest.raises(ValueError, match="a size is written as 64, or as height x width"):
            read_size(text)
    for given in ({"resize": "stretch"}, {"corrupt": "ignore"}):
        (name,) = given
        with pytest.raises(ValueError, match=f"{name} must be"):
            Pictures(**given)


def test_only_folders_of_images_are_scaled(tmp_path):
    (tmp_path / "a.txt").write_text("words " * 30)
    for source in ("fashion-mnist-small", tmp_path / "a.txt"):
        with pytest.raises(DataError, match="belong to folders of images, and this is none"):
            load(source, pictures=Pictures("fit"))


def test_a_class_of_which_nothing_is_left(photos):
    for file in (photos / "cat").iterdir():
        file.write_text("no picture")
    with pytest.raises(DataError, match="at least two classes"):
        load(photos, pictures=Pictures("fit", corrupt="skip"))
