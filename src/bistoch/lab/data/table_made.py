"""The rows of data made from a seed in the table of data sets."""

from bistoch.lab.data import synthetic
from bistoch.lab.data.entry import Entry

MADE = (
    Entry(
        "shapes",
        "points",
        "64 points on a sphere, cube, cylinder, cone or torus, turned at random; from a seed",
        "bistoch.lab.data.point_shapes",
        "MIT",
        {"train": 1000, "test": 500},
        synthetic.SHAPES,
        make=synthetic.make_shapes,
    ),
    Entry(
        "recall",
        "tokens",
        "8 pairs of key and value, then a key again: which value was it? From a seed",
        "bistoch.lab.data.recall",
        "MIT",
        {"train": 4000, "test": 1000},
        tuple(str(value) for value in range(synthetic.VALUES)),
        make=synthetic.make_recall,
    ),
)
