"""Token ids: which one is padding, and whether all are in the vocabulary."""

import torch
from jaxtyping import Int
from torch import Tensor

from bistoch.functional.inputs.tensors import values_are_at_hand

# the id of padding
PADDING = 0


def check_ids(model: str, tokens: Int[Tensor, "b n"], vocabulary: int) -> None:
    """Check that tokens are a batch of ids in the vocabulary.

    >>> check_ids("TextEncoder", torch.tensor([[1, 2, 0]]), 3)
    """
    dtypes = (torch.int64, torch.int32)
    if not isinstance(tokens, Tensor) or tokens.dtype not in dtypes or tokens.ndim != 2:
        came = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else "not one"
        raise TypeError(
            f"{model}: tokens must be a tensor of token ids (batch, length), but it is {came}; "
            "write tokens.long(), and tokens[None] for a single text"
        )
    if tokens.numel() and values_are_at_hand(tokens):
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"{model}: tokens must lie between 0 and {vocabulary - 1}, but they lie between "
                f"{low} and {high}; build the model for vocabulary={high + 1}, or encode the text "
                "with the vocabulary of the model"
            )
