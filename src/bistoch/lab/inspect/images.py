"""Images as inputs of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff"}


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The image files among files and folders, in order."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
        elif path.is_file():
            files.append(path)
        else:
            raise ValueError(f"inspect: there is no image {path}")
    if not files:
        raise ValueError(
            f"inspect: there is no image in {', '.join(map(str, paths))}; expected "
            f"{', '.join(sorted(SUFFIXES))}"
        )
    return files


def read_images(
    transformers: Any, name: str, config: Any, files: Sequence[Path], batch_size: int
) -> tuple[list[dict[str, Tensor]], list[list[str]], list[str]]:
    """The batches, the names of the tokens of every image, and notes for the report."""
    images = [_open(file) for file in files]
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(name)
    except (OSError, ValueError, ImportError):
        notes = [
            "No image processor came with the model: images are resized and scaled to [-1, 1]."
        ]
        pixels = torch.stack([_plain(image, config) for image in images])
    else:
        notes = []
        pixels = processor(images=images, return_tensors="pt")["pixel_values"]
    batches = [{"pixel_values": some} for some in pixels.split(batch_size)]
    tokens = _patches(config, pixels.shape[-2], pixels.shape[-1])
    return batches, [tokens] * len(files), notes


def _open(file: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError):
        raise ValueError(f"inspect: {file} cannot be read as an image") from None


def _plain(image: Any, config: Any) -> Tensor:
    import numpy as np

    size = config.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    array = np.asarray(image.resize((width, height)), dtype=np.float32)
    return torch.from_numpy(array).permute(2, 0, 1) / 127.5 - 1


def _patches(config: Any, height: int, width: int) -> list[str]:
    """Names of the tokens: the class token, then row and column of every patch."""
    size = config.patch_size
    tall, wide = size if isinstance(size, list | tuple) else (size, size)
    rows, columns = height // tall, width // wide
    return ["[class]"] + [
        f"patch {row + 1}:{column + 1}" for row in range(rows) for column in range(columns)
    ]
