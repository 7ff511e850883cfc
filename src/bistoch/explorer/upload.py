"""A picture of the user's, made into one that the model reads."""

import base64
import io

from bistoch.explorer.link import pack_pixels
from bistoch.explorer.vit import SIDE

MOST_BYTES = 10 << 20
MOST_PIXELS = 50_000_000


def read_upload(contents: str) -> str:
    """The pixels of an uploaded file, packed; a ValueError says why it cannot be used.

    The largest square in the middle is scaled down and made grey. Clothes of the training data are
    bright on black: a picture with a bright border is inverted.

    Args:
        contents: "data:...;base64,..." as a browser sends it.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    encoded = contents.partition(",")[2]
    if len(encoded) * 3 // 4 > MOST_BYTES:
        raise ValueError(f"the file is larger than {MOST_BYTES >> 20} MB; make it smaller first")
    try:
        with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
            # the size is known before the pixels are unpacked
            width, height = image.size
            if width * height <= MOST_PIXELS:
                grey = ImageOps.exif_transpose(image).convert("RGB").convert("L")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise ValueError(
            "the file cannot be read as a picture; use for example a PNG or a JPEG"
        ) from None
    if width * height > MOST_PIXELS:
        raise ValueError(
            f"the picture has {width} by {height} pixels, more than {MOST_PIXELS // 1_000_000} "
            "million; make it smaller first"
        )
    small = ImageOps.fit(grey, (SIDE, SIDE), Image.Resampling.LANCZOS)
    pixels = list(small.tobytes())
    border = [
        value
        for place, value in enumerate(pixels)
        if place // SIDE in (0, SIDE - 1) or place % SIDE in (0, SIDE - 1)
    ]
    if sum(border) > 127 * len(border):
        pixels = [255 - value for value in pixels]
    return pack_pixels(bytes(pixels))
