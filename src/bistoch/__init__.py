"""Attention whose columns are as accountable as its rows.

One elastic operator slides from softmax (`lam = 0`) to doubly stochastic (`lam = 1`) to hard
assignment (`eps -> 0`), with rows that always sum to one.
"""

from bistoch import flows as flows
from bistoch import nn as nn
from bistoch.functional import OPERATORS as OPERATORS
from bistoch.functional import BackendUnavailableError as BackendUnavailableError
from bistoch.functional import CausalState as CausalState
from bistoch.functional import ConvergenceWarning as ConvergenceWarning
from bistoch.functional import Gaussian as Gaussian
from bistoch.functional import Operator as Operator
from bistoch.functional import Potentials as Potentials
from bistoch.functional import anneal_attention as anneal_attention
from bistoch.functional import anneal_plan as anneal_plan
from bistoch.functional import balance as balance
from bistoch.functional import causal_elastic_attention as causal_elastic_attention
from bistoch.functional import causal_elastic_plan as causal_elastic_plan
from bistoch.functional import causal_elastic_step as causal_elastic_step
from bistoch.functional import delta_attention as delta_attention
from bistoch.functional import delta_plan as delta_plan
from bistoch.functional import elastic_attention as elastic_attention
from bistoch.functional import elastic_monarch_attention as elastic_monarch_attention
from bistoch.functional import elastic_monarch_plan as elastic_monarch_plan
from bistoch.functional import elastic_plan as elastic_plan
from bistoch.functional import elastic_potentials as elastic_potentials
from bistoch.functional import entmax_attention as entmax_attention
from bistoch.functional import entmax_plan as entmax_plan
from bistoch.functional import gumbel_balance as gumbel_balance
from bistoch.functional import hard_attention as hard_attention
from bistoch.functional import hard_plan as hard_plan
from bistoch.functional import lowrank_attention as lowrank_attention
from bistoch.functional import lowrank_plan as lowrank_plan
from bistoch.functional import mixing_attention as mixing_attention
from bistoch.functional import mixing_plan as mixing_plan
from bistoch.functional import monarch_attention as monarch_attention
from bistoch.functional import monarch_plan as monarch_plan
from bistoch.functional import normsoftmax_attention as normsoftmax_attention
from bistoch.functional import normsoftmax_plan as normsoftmax_plan
from bistoch.functional import orthogonal_attention as orthogonal_attention
from bistoch.functional import orthogonal_plan as orthogonal_plan
from bistoch.functional import quantum_attention as quantum_attention
from bistoch.functional import quantum_plan as quantum_plan
from bistoch.functional import sigmoid_attention as sigmoid_attention
from bistoch.functional import sigmoid_plan as sigmoid_plan
from bistoch.functional import sink_attention as sink_attention
from bistoch.functional import sink_plan as sink_plan
from bistoch.functional import sinkhorn_attention as sinkhorn_attention
from bistoch.functional import sinkhorn_plan as sinkhorn_plan
from bistoch.functional import sliced_attention as sliced_attention
from bistoch.functional import sliced_plan as sliced_plan
from bistoch.functional import softmax_attention as softmax_attention
from bistoch.functional import softmax_plan as softmax_plan
from bistoch.functional import softpick_attention as softpick_attention
from bistoch.functional import softpick_plan as softpick_plan
from bistoch.functional import sparsemax_attention as sparsemax_attention
from bistoch.functional import sparsemax_plan as sparsemax_plan
from bistoch.functional import wasserstein_attention as wasserstein_attention
from bistoch.functional import wasserstein_moments as wasserstein_moments
from bistoch.functional import wasserstein_plan as wasserstein_plan

__version__ = "0.1.0"
