"""Who computes the elastic family, and what "auto" stands for."""

from bistoch.functional import inputs
from bistoch.functional.backends import HAS_NUMBA, Backend, choose_backend
from bistoch.functional.elastic.triton import features_of, takes
from bistoch.functional.kernels.gpu import HAS_TRITON, check_new_enough, is_new_enough
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
    if chosen.name == "triton":
        check_new_enough(operator, scores.like.device)
        if not takes(scores, features):
            inputs.refuse_triton(operator, scores.like.dtype, features_of(scores), features)
    return chosen


def _fastest(scores: Scores | GivenScores, features: int) -> str:
    """What "auto" stands for: the kernels of the device, where they can run, whatever the sizes."""
    device = scores.like.device
    if device.type == "cpu" and HAS_NUMBA:
        return "cpu"
    known = HAS_TRITON and takes(scores, features) and is_new_enough(device)
    return "triton" if device.type == "cuda" and known else "streaming"
