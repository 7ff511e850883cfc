"""What a job tells the kernels: many circuits of one form side by side, one in each vector lane.

A group is as many circuits as a vector has floats. Every number of a circuit is then a vector, the
gates too, and no operation crosses lanes, whichever qubits a gate acts on.
"""

from bistoch.functional.kernels.job import reader
from bistoch.functional.kernels.runtime import address_of, jit, size_of, take_next
from bistoch.functional.kernels.vector import lanes_of

# the numbers of a job in their order; names ending in _at are addresses
FIELDS = (
    "next_group", "next_worker", "groups", "wires", "qubits", "gates", "columns",
    # a number that says how blocks are made, and after how many of them states are conjugated
    "order", "along_x", "mirrored", "places_at",
    # arrays over groups, or 0
    "cos_at", "sin_at", "states_at", "plan_at", "plan_grad_at", "angle_grad_at",
    "workspace_at", "workspace_stride",
)  # fmt: skip
_job_at = reader(FIELDS)

# how a block is made of a turn of both qubits and a coupling, in the order of time
TURN_FIRST, TURN_TWICE = range(2)
# the angles of a block, of half of which the kernels are given sine and cosine
FIRST, SECOND, XX, YY = range(4)
# columns of the unitary matrix that go through the circuit together, at most: they stay in the
# cache from the first gate to the last
COLUMNS = 4


@jit
def open_job(pointer):
    """The numbers of a job by name."""
    return _job_at(address_of(pointer))


@jit
def next_group(job):
    """A group that is not taken."""
    return take_next(job.next_group)


@jit
def wide(like):
    """Bytes from one vector to the next."""
    return lanes_of(like) * size_of(like)


@jit
def couples_first(job, gate):
    """Whether a block couples before it turns: those that are mirrored in time do."""
    return gate < job.mirrored
