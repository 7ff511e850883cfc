"""Numbers that kernels read by name, and the part of a workspace that belongs to one worker."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import from_dtype, types
from numba.extending import intrinsic

from bistoch.functional.kernels.runtime import jit, size_of, take_next


def reader(fields: Sequence[str]) -> Any:
    """What reads int64 numbers at an address, each under its name."""
    record = from_dtype(np.dtype([(name, np.int64) for name in fields]))

    def read(typing, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(record))

        return record(types.int64), generate

    return intrinsic(read)


@jit
def own_space(job, like):
    """The workspace of a worker that comes to a job."""
    return job.workspace_at + take_next(job.next_worker) * job.workspace_stride * size_of(like)
