"""Operators compared by training: the same model, data and recipe, several seeds, one report."""

from bistoch.lab.compare.plan import DEFAULT_OPERATORS as DEFAULT_OPERATORS
from bistoch.lab.compare.plan import Comparison as Comparison
from bistoch.lab.compare.run import run_compare as run_compare
