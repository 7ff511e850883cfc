"""Who computes a circuit, and what "auto" stands for."""

from bistoch.functional._export import is_open
from bistoch.functional.backends import HAS_NUMBA, Backend, choose_backend
from bistoch.functional.circuit.problem import CircuitProblem

_MODULES = {
    "reference": "bistoch.functional.circuit.reference",
    "cpu": "bistoch.functional.circuit.operator",
}
BACKENDS = tuple(_MODULES)

# numbers of all unitary matrices times layers, below which compiling takes longer than it saves
SMALL = 1 << 17
# the kernels work on so many circuits side by side, and on more than they are given if there are
# fewer; so large ones are left to torch unless there are enough of them
FEW, LARGE = 4, 8


def choose(operator: str, problem: CircuitProblem, backend: str) -> Backend:
    """The backend that a user asked for."""
    return choose_backend(operator, backend, _MODULES, problem.angles.device, _fastest(problem))


def _fastest(problem: CircuitProblem) -> str:
    """What "auto" stands for: the kernels, where they can run and there is work enough for them."""
    batch = problem.angles.shape[0]
    enough = is_open(batch) or (batch >= FEW and batch * 4**problem.wires * problem.layers >= SMALL)
    if problem.angles.device.type == "cpu" and HAS_NUMBA and enough and problem.wires <= LARGE:
        return "cpu"
    return "reference"
