"""The backends that tests of the whole family run over.

Not "triton": in its interpreter a call takes seconds. `elastic/gpu` has tests of its own, and the
laws run over it in `make test-all`.
"""

from bistoch.functional.elastic import BACKENDS as ALL

BACKENDS = tuple(backend for backend in ALL if backend != "triton")
