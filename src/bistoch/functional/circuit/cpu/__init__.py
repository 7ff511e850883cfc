"""Kernels of circuits on CPUs; `launch` is what other files call."""
