"""Moving pictures: frames drawn by matplotlib, kept as a GIF by Pillow."""

import io
from collections.abc import Callable, Iterable
from typing import Any

from bistoch.lab.drawing import sheet


def animate(
    frames: Iterable[Any],
    paint: Callable[[Any, Any], None],
    *,
    milliseconds: int = 90,
    size: tuple[float, float] = (4.4, 3.3),
) -> bytes:
    """A GIF with one frame per item; `paint(axes, item)` draws each on an empty panel.

    >>> content = animate([1, 2], lambda axes, item: axes.plot([0, item]) and None)
    >>> content[:6]
    b'GIF89a'
    """
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(
            'a moving picture needs Pillow; install it with: pip install "bistoch[plot]"'
        ) from None
    pictures = []
    for item in frames:
        figure, axes = sheet(1, 1, width=size[0], height=size[1])
        paint(axes[0][0], item)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=80)
        # few colours: a GIF has 256, and line drawings need less
        pictures.append(Image.open(content).convert("RGB").quantize(64))
    result = io.BytesIO()
    pictures[0].save(
        result, format="GIF", save_all=True, append_images=pictures[1:], duration=milliseconds,
        loop=0,
    )  # fmt: skip
    return result.getvalue()
