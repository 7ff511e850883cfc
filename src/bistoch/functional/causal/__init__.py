"""Causal balance: keys are balanced against what earlier rows gave them, block by block."""

from bistoch.functional.causal.api import BACKENDS as BACKENDS
from bistoch.functional.causal.api import causal_elastic_attention as causal_elastic_attention
from bistoch.functional.causal.api import causal_elastic_plan as causal_elastic_plan
from bistoch.functional.causal.decode import CausalState as CausalState
from bistoch.functional.causal.decode import causal_elastic_step as causal_elastic_step
