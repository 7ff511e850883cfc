"""The kernels of this folder as a backend."""

from bistoch.functional.backends import Backend
from bistoch.functional.causal.triton.operator import attend
from bistoch.functional.kernels.gpu import device_type

BACKEND = Backend("triton", device_type(), attend, halves=True)
