"""The kernels of this folder as a backend."""

from bistoch.functional.backends import Backend
from bistoch.functional.elastic.operator import register
from bistoch.functional.elastic.triton.solve import (
    backward,
    backward_plan,
    empty_history,
    forward,
    forward_plan,
    small_plans,
)
from bistoch.functional.kernels.gpu import device_type

_solve = register("elastic_triton", forward, backward, make_history=empty_history)
_solve_plan = register("balance_triton", forward_plan, backward_plan, make_history=empty_history)

BACKEND = Backend("triton", device_type(), _solve, small_plans(_solve_plan), halves=True)
