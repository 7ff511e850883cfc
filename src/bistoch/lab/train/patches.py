"""The patch of a vision Transformer where none is named: it follows from the size of the images."""

import math
from collections.abc import Mapping
from typing import Any

from bistoch.functional import read_call
from bistoch.models import MODELS, PRESETS
from bistoch.models.build import find_row

# tokens that patches aim at; fewer or more than the others only if there is no other way
TOKENS, FEWEST, MOST = 64, 8, 256


def patch_for(image: tuple[int, int]) -> tuple[int, int]:
    """The patch that fills an image with about 64 tokens and is as square as possible.

    >>> [patch_for(size) for size in ((28, 28), (32, 32), (64, 48), (224, 224), (31, 29))]
    [(4, 4), (4, 4), (8, 8), (28, 28), (1, 29)]
    """

    def cost(patch: tuple[int, int]) -> tuple[bool, float]:
        tokens = (image[0] // patch[0]) * (image[1] // patch[1])
        uneven = 2 * abs(math.log(patch[0] / patch[1]))
        return not FEWEST <= tokens <= MOST, abs(math.log(tokens / TOKENS)) + uneven

    heights, widths = ([n for n in range(1, side + 1) if side % n == 0] for side in image)
    return min(((tall, wide) for tall in heights for wide in widths), key=cost)


def chosen_patch(model: str, sizes: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """The option `patch` of a model of images whose text says nothing about it; else nothing.

    >>> chosen_patch("vit(depth=2)", {"image": (64, 64)}), chosen_patch("vit(patch=(2, 2))", {})
    ({'patch': (8, 8)}, {})
    """
    name, written = read_call(model, "model", "vit(depth=2, dim=128)")
    preset = PRESETS.get(name)
    row = find_row(model, MODELS, PRESETS)
    is_said = "patch" in written or (preset is not None and "patch" in preset.options)
    takes = hasattr(row.config, "patch")
    return {"patch": patch_for(sizes["image"])} if takes and not is_said else {}
