"""Numba kernels of Monarch attention."""
