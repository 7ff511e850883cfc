"""Numba kernels of delta attention."""
