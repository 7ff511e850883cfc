"""Checks of the sizes of blocks that a user chose for kernels."""

from collections.abc import Sequence


def read_blocks(name: str, text: str, families: Sequence[str]) -> dict[str, tuple]:
    """Sizes of blocks by family of kernels, from a text such as `steps=64x32x4x2`.

    >>> read_blocks("BLOCKS", "steps=64x32x4x2", ["steps"])
    {'steps': (64, 32, 4, 2)}
    """
    found: dict[str, tuple] = {}
    for part in filter(None, (word.strip() for word in text.split(","))):
        family, _, sizes = part.partition("=")
        words = sizes.split("x")
        numbers = tuple(int(word) for word in words if word.isdecimal())
        if family not in families or len(words) != 4 or len(numbers) != 4:
            raise ValueError(
                f"{name} must be parts such as steps=64x32x4x2 between commas, a name of "
                f"{', '.join(families)} with tokens owned, tokens of a step, warps and stages; but "
                f"a part is {part!r}"
            )
        *powers, stages = numbers
        small = min(powers[:2]) < 16 or not 1 <= powers[2] <= 32 or not 1 <= stages <= 8
        if small or any(number & (number - 1) for number in powers):
            raise ValueError(
                f"{name}: tokens must be powers of two from 16 on, warps a power of two up to 32, "
                f"and stages from 1 to 8, but {family} has {sizes}"
            )
        found[family] = numbers
    return found
