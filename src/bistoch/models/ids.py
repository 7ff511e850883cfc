"""Sentences as whole numbers: which one is padding, and whether all are known."""

import torch
from jaxtyping import Int
from torch import Tensor

from bistoch.functional._inputs.tensors import values_are_at_hand

# what fills the places behind the end of a sentence
PADDING = 0


def check_ids(model: str, tokens: Int[Tensor, "b n"], vocabulary: int) -> None:
    """Check that tokens are a batch of numbers from zero up to the size of the vocabulary.

    >>> check_ids("TextEncoder", torch.tensor([[1, 2, 0]]), 3)
    """
    kinds = (torch.int64, torch.int32)
    if not isinstance(tokens, Tensor) or tokens.dtype not in kinds or tokens.ndim != 2:
        came = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else "not one"
        raise TypeError(
            f"{model}: tokens must be a tensor of whole numbers (batch, length), but it is {came}; "
            "write tokens.long(), and tokens[None] for a single sentence"
        )
    if tokens.numel() and values_are_at_hand(tokens):
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"{model}: tokens must lie between 0 and {vocabulary - 1}, but they lie between "
                f"{low} and {high}; build the model for vocabulary={high + 1}, or encode the text "
                "with the vocabulary of the model"
            )
