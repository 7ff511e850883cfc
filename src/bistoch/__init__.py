"""Attention whose columns are as accountable as its rows.

One elastic operator slides from softmax (`lam = 0`) to doubly stochastic (`lam = 1`) to hard
assignment (`eps -> 0`), with rows that always sum to one.
"""

from bistoch import flows as flows
from bistoch import nn as nn
from bistoch.functional import OPERATORS as OPERATORS
from bistoch.functional import BackendUnavailableError as BackendUnavailableError
from bistoch.functional import ConvergenceWarning as ConvergenceWarning
from bistoch.functional import Operator as Operator
from bistoch.functional import Potentials as Potentials
from bistoch.functional import anneal_attention as anneal_attention
from bistoch.functional import anneal_plan as anneal_plan
from bistoch.functional import balance as balance
from bistoch.functional import elastic_attention as elastic_attention
from bistoch.functional import elastic_plan as elastic_plan
from bistoch.functional import elastic_potentials as elastic_potentials
from bistoch.functional import gumbel_balance as gumbel_balance
from bistoch.functional import hard_attention as hard_attention
from bistoch.functional import hard_plan as hard_plan
from bistoch.functional import sinkhorn_attention as sinkhorn_attention
from bistoch.functional import sinkhorn_plan as sinkhorn_plan
from bistoch.functional import softmax_attention as softmax_attention
from bistoch.functional import softmax_plan as softmax_plan

__version__ = "0.1.0"
