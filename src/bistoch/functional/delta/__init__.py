"""Delta attention: a readable reference of torch products, and kernels for CPUs."""

# a program that was exported names its operator, which must be known when it is loaded
from bistoch.functional.delta import operator as _operator  # noqa: F401
from bistoch.functional.delta.api import BACKENDS as BACKENDS
from bistoch.functional.delta.api import delta_attention as delta_attention
from bistoch.functional.delta.api import delta_plan as delta_plan
from bistoch.functional.delta.decode import delta_step as delta_step
