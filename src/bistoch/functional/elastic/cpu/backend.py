"""The kernels of this folder as a backend."""

from bistoch.functional.backends import Backend
from bistoch.functional.elastic.cpu import lanes, launch

BACKEND = Backend("cpu", "cpu", launch.solve, lanes.plan, looks=True)
