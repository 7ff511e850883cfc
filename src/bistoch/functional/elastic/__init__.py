"""The elastic family: one operator from softmax (lam = 0) to doubly stochastic (lam = 1)."""

# a program that was exported names the operators of _streaming and _cpu, which must be known when
# it is loaded
from bistoch.functional.elastic import streaming as _streaming  # noqa: F401
from bistoch.functional.elastic.api import ConvergenceWarning as ConvergenceWarning
from bistoch.functional.elastic.api import Potentials as Potentials
from bistoch.functional.elastic.api import balance as balance
from bistoch.functional.elastic.api import elastic_attention as elastic_attention
from bistoch.functional.elastic.api import elastic_plan as elastic_plan
from bistoch.functional.elastic.api import elastic_potentials as elastic_potentials
from bistoch.functional.elastic.api import sinkhorn_attention as sinkhorn_attention
from bistoch.functional.elastic.api import sinkhorn_plan as sinkhorn_plan
from bistoch.functional.elastic.backends import BACKENDS as BACKENDS
from bistoch.functional.elastic.cpu import backend as _cpu  # noqa: F401
from bistoch.functional.elastic.logs import balance_potentials as balance_potentials
from bistoch.functional.elastic.logs import log_balance as log_balance
