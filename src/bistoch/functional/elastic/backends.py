"""Who computes the elastic family, and what "auto" stands for."""

from bistoch.functional import inputs
from bistoch.functional.backends import HAS_NUMBA, Backend, choose_backend
from bistoch.functional.elastic.triton import features_of, takes
from bistoch.functional.kernels.gpu import HAS_TRITON
from bistoch.functional.problem import GivenScores, Scores

_MODULES = {
    "reference": "bistoch.functional.elastic.reference",
    "streaming": "bistoch.functional.elastic.streaming",
    "cpu": "bistoch.functional.elastic.cpu.backend",
    "triton": "bistoch.functional.elastic.triton.backend",
}
BACKENDS = tuple(_MODULES)


def choose(operator: str, scores: Scores | GivenScores, backend: str, features: int = 0) -> Backend:
    """The backend that a user asked for, for scores and values of so many features."""
    fastest = _fastest(scores, features)
    chosen = choose_backend(operator, backend, _MODULES, scores.like.device, fastest)
    if chosen.name == "triton" and not takes(scores, features):
        inputs.refuse_triton(operator, scores.like.dtype, features_of(scores), features)
    return chosen


def _fastest(scores: Scores | GivenScores, features: int) -> str:
    """What "auto" stands for: the kernels of the device, where they can run, whatever the sizes."""
    device = scores.like.device.type
    if device == "cpu" and HAS_NUMBA:
        return "cpu"
    return "triton" if device == "cuda" and HAS_TRITON and takes(scores, features) else "streaming"
