"""Circuits as a source of plans: a readable simulator, and kernels for many small circuits."""

from bistoch.functional.circuit.backends import BACKENDS as BACKENDS
from bistoch.functional.circuit.backends import choose as choose
from bistoch.functional.circuit.problem import ANSAETZE as ANSAETZE
from bistoch.functional.circuit.problem import CircuitProblem as CircuitProblem
from bistoch.functional.circuit.problem import count_angles as count_angles
