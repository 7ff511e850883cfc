"""Causal balance: keys are balanced against what earlier rows gave them, block by block."""

# a program that was exported names its operator, which must be known when it is loaded
from bistoch.functional.causal import operator as _operator  # noqa: F401
from bistoch.functional.causal.api import BACKENDS as BACKENDS
from bistoch.functional.causal.api import causal_elastic_attention as causal_elastic_attention
from bistoch.functional.causal.api import causal_elastic_plan as causal_elastic_plan
from bistoch.functional.causal.decode import CausalState as CausalState
from bistoch.functional.causal.decode import causal_elastic_step as causal_elastic_step
from bistoch.functional.causal.triton import operator as _triton_operator  # noqa: F401
