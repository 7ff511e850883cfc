"""Images on their way into a model that sees."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def find(paths: Sequence[Path], endings: set[str]) -> list[Path]:
    """The image files among files and folders, in order."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(file for file in path.iterdir() if file.suffix.lower() in endings)
        elif path.is_file():
            files.append(path)
        else:
            raise ValueError(f"inspect: there is no image {path}")
    if not files:
        places = ", ".join(map(str, paths))
        raise ValueError(
            f"inspect: there is no image in {places}; png and jpg are known, others too"
        )
    return files


def read(
    transformers: Any, name: str, config: Any, files: Sequence[Path], at_once: int
) -> tuple[list[dict[str, Tensor]], list[list[str]], list[str]]:
    """What the model is called with, the names of its tokens, and what the reader should know."""
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
    batches = [{"pixel_values": some} for some in pixels.split(at_once)]
    tokens = _patches(config, pixels.shape[-2], pixels.shape[-1])
    return batches, [tokens] * len(files), notes


def _open(file: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError):
        raise ValueError(f"inspect: {file} is no image that can be read") from None


def _plain(image: Any, config: Any) -> Tensor:
    import numpy as np

    size = config.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    array = np.asarray(image.resize((width, height)), dtype=np.float32)
    return torch.from_numpy(array).permute(2, 0, 1) / 127.5 - 1


def _patches(config: Any, height: int, width: int) -> list[str]:
    """Tokens that are no patch come first: the one for the class, and registers."""
    size = config.patch_size
    tall, wide = size if isinstance(size, list | tuple) else (size, size)
    rows, columns = height // tall, width // wide
    return ["[class]"] + [
        f"{row + 1}:{column + 1}" for row in range(rows) for column in range(columns)
    ]
