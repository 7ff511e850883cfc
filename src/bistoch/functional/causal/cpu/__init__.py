"""Kernels of causal balance on CPUs; `launch` is what other files call."""
