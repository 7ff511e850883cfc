"""The elastic family: one operator from softmax (lam = 0) to doubly stochastic (lam = 1)."""

from bistoch.functional.elastic.api import BACKENDS as BACKENDS
from bistoch.functional.elastic.api import ConvergenceWarning as ConvergenceWarning
from bistoch.functional.elastic.api import Potentials as Potentials
from bistoch.functional.elastic.api import balance as balance
from bistoch.functional.elastic.api import elastic_attention as elastic_attention
from bistoch.functional.elastic.api import elastic_plan as elastic_plan
from bistoch.functional.elastic.api import elastic_potentials as elastic_potentials
from bistoch.functional.elastic.api import sinkhorn_attention as sinkhorn_attention
from bistoch.functional.elastic.api import sinkhorn_plan as sinkhorn_plan
