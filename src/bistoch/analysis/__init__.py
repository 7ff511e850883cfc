"""Measuring: what turns a plan into a number or a picture."""

from bistoch.analysis import metrics as metrics
from bistoch.analysis.capture import Captured as Captured
from bistoch.analysis.capture import capture as capture
from bistoch.analysis.example import planted_tokens as planted_tokens
from bistoch.analysis.influence import attention_influence as attention_influence
from bistoch.analysis.influence import balanced_layers as balanced_layers
from bistoch.analysis.influence import influence_warning as influence_warning
from bistoch.analysis.plot import draw_plans as draw_plans
from bistoch.analysis.sums import PlanSums as PlanSums
from bistoch.analysis.sums import add_up as add_up
from bistoch.analysis.terminal import TerminalPlans as TerminalPlans
