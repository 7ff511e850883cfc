"""Kernels of the elastic operator on CPUs; `launch` and `lanes` are what other files call."""
