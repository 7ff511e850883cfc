"""GPUs that are not here: kernels compiled for them, and a model of what they cost.

`compiled` reads registers, spills and shared memory from the compilers, `cost` counts work.
"""
