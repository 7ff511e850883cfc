"""The precision in which operators compute."""

import torch


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision inside: float64 stays, everything shorter becomes float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
