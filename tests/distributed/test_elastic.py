"""Whatever the number of ranks, results and all gradients are those of one process.

A fast run takes all cases with three ranks, one of which has no rows, and some with 1, 2 and 4.
"""

import pytest

from distributed import elastic_cases as cases

NAMES = (
    "plain", "softmax", "no iterations", "learned", "padding", "mass", "bias", "boolean",
    "row of bias", "vector of bias", "tol", "tol and omega", "sharp", "sharp and soft",
    "one iteration",
)  # fmt: skip
POTENTIALS = (
    "plain", "learned", "padding", "bias", "start", "row mass", "both masses", "tol",
    "far start",
)  # fmt: skip
SCORES = ("plain", "learned", "padding", "mass", "bias", "row of bias", "start", "row mass")
CAUSAL = (
    "plain", "softmax", "learned", "padding", "queries padded", "bias", "window", "row of bias",
    "block of one", "long block",
)  # fmt: skip
BACKENDS = ("reference", "streaming")
# function, backend and the way of the keys
WAYS = [
    *(("attention", backend, "gather", NAMES) for backend in BACKENDS),
    ("attention", "streaming", "ring", NAMES),
    *(("potentials", backend, "gather", POTENTIALS) for backend in BACKENDS),
    ("potentials", "streaming", "ring", POTENTIALS),
    *(("given_scores", backend, None, SCORES) for backend in BACKENDS),
    *(("causal", backend, None, CAUSAL) for backend in BACKENDS),
]


def compare(pool, size, way, names):
    """Fail with a table of all that is too far apart."""
    function, backend, keys, _ = way
    rest = (backend,) if keys is None else (backend, keys)
    found = pool.run(size, cases.several, {name: (function, name, *rest) for name in names})
    far = [
        f"rank {rank}: {case}: {name} is {apart:.2g} apart"
        for rank, table in enumerate(found)
        for case, differences in table.items()
        for name, apart in differences.items()
        if not apart < 1e-9
    ]
    assert not far, "\n".join(far)


def name(way):
    """For the names of tests."""
    return "-".join(str(word) for word in way[:3] if word)


# the reference is there to be read: what streams is what is used
FAST = [
    pytest.param(way, marks=[] if way[1] == "streaming" or way is WAYS[0] else pytest.mark.slow)
    for way in WAYS
]


@pytest.mark.parametrize("way", FAST, ids=name)
def test_three_ranks_equal_one_process(pool, way):
    compare(pool, 3, way, way[3])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_any_number_of_ranks_equals_one_process(pool, size):
    for way in WAYS:
        if way[1] == "streaming":
            compare(pool, size, way, ("learned",))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=name)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_cases_equal_one_process(pool, size, way):
    compare(pool, size, way, way[3])
