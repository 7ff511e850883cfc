"""Pictures of your own: their sizes, scaling to one size, and what to do with damaged files."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bistoch.lab.data.kinds import DataError
from bistoch.lab.data.read_files import read_bytes
from bistoch.lab.data.read_images import decode, import_pillow

Size = tuple[int, int]
# the longest side of pictures that are scaled to no certain size, and what sides are rounded to
LONGEST, GRAIN = 64, 8
# names that an error lists
LISTED = 8
# what is said of most files that cannot be read
DAMAGED = " is cut or damaged, or not an image"


@dataclass(frozen=True)
class Pictures:
    """How a folder of pictures is read.

    Args:
        resize: "fit" scales a picture until it lies inside the size, and fills the rest with its
            mean colour; "crop" scales it until it covers the size, and cuts what is outside. None
            takes pictures as they are, all of one size.
        size: height and width to scale to. By default those of the median picture, scaled down to
            a longer side of at most 64 and rounded to multiples of 8.
        corrupt: "refuse" raises an error that lists all files that cannot be read, "skip" leaves
            them out and keeps a note.

    >>> Pictures(size=(32, 32))
    Traceback (most recent call last):
    ...
    ValueError: images: a size of 32 x 32 needs a way to get there; give resize="fit" or "crop" too
    """

    resize: Literal["fit", "crop"] | None = None
    size: Size | None = None
    corrupt: Literal["refuse", "skip"] = "refuse"

    def __post_init__(self) -> None:
        for name, known in (("resize", (None, "fit", "crop")), ("corrupt", ("refuse", "skip"))):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"images: {name} must be {' or '.join(map(str, filter(None, known)))}, but it "
                    f"is {getattr(self, name)!r}"
                )
        if self.size is not None and self.resize is None:
            raise ValueError(
                f"images: a size of {_by(self.size)} needs a way to get there; give "
                'resize="fit" or "crop" too'
            )


AS_THEY_ARE = Pictures()


def read_size(text: str | None) -> Size | None:
    """Height and width from words of a command line.

    >>> read_size("64"), read_size("48x64"), read_size(None)
    ((64, 64), (48, 64), None)
    >>> read_size("large")
    Traceback (most recent call last):
    ...
    ValueError: images: a size is written as 64, or as height x width such as 48x64, not 'large'
    """
    if text is None:
        return None
    sides = re.fullmatch(r"(\d{1,5})(?:\s*x\s*(\d{1,5}))?", text.strip())
    found = tuple(int(side) for side in (sides[1], sides[2] or sides[1])) if sides else (0,)
    if min(found) < 1:
        raise ValueError(
            f"images: a size is written as 64, or as height x width such as 48x64, not {text!r}"
        )
    return found[0], found[-1]


def resize_image(image: np.ndarray, how: str, size: Size) -> np.ndarray:
    """A picture, grey (h, w) or RGB (h, w, 3), in another size; see `Pictures`.

    >>> wide = np.zeros((10, 20), np.uint8)
    >>> resize_image(wide, "fit", (8, 8)).shape, resize_image(wide, "crop", (8, 8)).shape
    ((8, 8), (8, 8))
    """
    pillow = import_pillow("images")
    if image.shape[:2] == size:
        return image
    height, width = size
    picture = pillow.Image.fromarray(image)
    if how == "crop":
        return np.asarray(pillow.ImageOps.fit(picture, (width, height)))
    mean = image.reshape(-1, *image.shape[2:]).mean(0).round().astype(int)
    colour = tuple(mean.tolist()) if image.ndim == 3 else int(mean)
    return np.asarray(pillow.ImageOps.pad(picture, (width, height), color=colour))


def read_pictures(
    paths: Sequence[Path], options: Pictures, source: Path
) -> tuple[dict[Path, np.ndarray], list[str], Size | None]:
    """The pixels of pictures in one size, notes, and the size that they were scaled to.

    The heads of all files are read before the first picture, so that mixed sizes and files that
    are no pictures are found early. Pictures are scaled as they are read.
    """
    failed: dict[Path, str] = {}
    sizes = {path: size for path in paths if (size := _head(path, failed)) is not None}
    if options.resize is None:
        _check_one_size(sizes, source)
        size = None
    else:
        size = options.size or _common_size(list(sizes.values()))
    images = {}
    for path in sizes:
        try:
            image = decode(read_bytes(path), path)
        except DataError as broken:
            failed[path] = str(broken)
            continue
        images[path] = image if size is None else resize_image(image, options.resize or "", size)
    notes = _failures(failed, options.corrupt, source, len(paths))
    grey = sum(image.ndim == 2 for image in images.values())
    if 0 < grey < len(images):
        notes.append(f"{grey} of {len(images)} images are grey: all are read as RGB.")
        images = {
            path: image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)
            for path, image in images.items()
        }
    if size is not None:
        notes.append(f"Images are scaled to {_by(size)} (height x width, {options.resize}).")
    return images, notes, size


def failures_sentence(failed: Mapping[Path, str], source: object, count: int) -> str:
    """All files that cannot be read, by name and reason; of many, the first."""
    if len(failed) == 1:
        return next(iter(failed.values()))
    names = [_name_and_reason(path, reason) for path, reason in failed.items()][:LISTED]
    more = f" and {len(failed) - LISTED} more" if len(failed) > LISTED else ""
    return f"{source}: {len(failed)} of {count} files cannot be read: {', '.join(names)}{more}"


def _name_and_reason(path: Path, reason: str) -> str:
    """A file in a list: the sentence about it without what all have in common."""
    why = reason.removeprefix(str(path)).removeprefix(DAMAGED).strip(" :()")
    return f"{path} ({why})"


def _failures(failed: Mapping[Path, str], corrupt: str, source: Path, count: int) -> list[str]:
    if not failed:
        return []
    if corrupt == "refuse":
        sentence = failures_sentence(failed, source, count)
        raise DataError(f"{sentence}; replace what is damaged, or leave it out with --corrupt skip")
    names = [str(path.relative_to(source)) for path in failed]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return [
        f"{len(names)} of {count} files cannot be read and are skipped: "
        f"{', '.join(names[:LISTED])}{more}."
    ]


def _head(path: Path, failed: dict[Path, str]) -> Size | None:
    """Height and width from the head of a file, without its pixels."""
    pillow = import_pillow(path)
    try:
        with pillow.Image.open(path) as image:
            return image.height, image.width
    except pillow.UnidentifiedImageError:
        failed[path] = f"{path}{DAMAGED} (its kind is unknown)"
    except (OSError, SyntaxError, ValueError, pillow.Image.DecompressionBombError) as broken:
        failed[path] = f"{path}{DAMAGED} ({broken})"
    return None


def _check_one_size(sizes: Mapping[Path, Size], source: Path) -> None:
    counts = Counter(sizes.values())
    if len(counts) < 2:
        return
    examples = {size: path for path, size in reversed(list(sizes.items()))}
    words = [
        f"{_by(size)} ({count} images, such as {examples[size].relative_to(source)})"
        for size, count in counts.most_common(LISTED)
    ]
    more = f" and {len(counts) - LISTED} more" if len(counts) > LISTED else ""
    raise DataError(
        f"{source}: all images must have one size, but there are {len(counts)} (height x width): "
        f"{', '.join(words)}{more}; scale them with --resize fit or --resize crop"
    )


def _common_size(sizes: Sequence[Size]) -> Size | None:
    """The median height and width, not too large and round.

    >>> _common_size([(3000, 4000), (3000, 4000), (20, 30)]), _common_size([(30, 31)])
    ((48, 64), (32, 32))
    """
    if not sizes:
        return None
    sides: Any = np.median(np.array(sizes), axis=0)
    sides = sides * min(1.0, LONGEST / sides.max())
    height, width = (max(GRAIN, GRAIN * round(side / GRAIN)) for side in sides.tolist())
    return height, width


def _by(size: Size) -> str:
    return f"{size[0]} x {size[1]}"
