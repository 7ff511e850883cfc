"""Monarch attention: a plan of two thin stochastic factors."""

# a program that was exported names its operator, which must be known when it is loaded
from bistoch.functional.monarch import operator as _operator  # noqa: F401
from bistoch.functional.monarch.api import BACKENDS as BACKENDS
from bistoch.functional.monarch.api import monarch_attention as monarch_attention
from bistoch.functional.monarch.api import monarch_plan as monarch_plan
