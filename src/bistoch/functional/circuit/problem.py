"""What is computed: the squares of a circuit's unitary matrix, added up over the ancilla."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

ANSAETZE = ("simple", "parted", "centrosymmetric", "trotter")
ANGLES_PER_BLOCK = 4


class CircuitProblem(NamedTuple):
    """A batch of circuits of one form, each with angles of its own.

    A plan is `P_ij = sum_ab |U_(ia)(jb)|^2`, i and j the states of the first `qubits`, a and b
    those of the `ancilla` behind them: not yet divided by the 2^ancilla that its rows sum to.
    """

    angles: Float[Tensor, "B angles"]
    qubits: int
    ancilla: int
    layers: int
    ansatz: str

    @property
    def wires(self) -> int:
        """All qubits of the circuit."""
        return self.qubits + self.ancilla


def count_angles(qubits: int, layers: int, ansatz: str) -> int:
    """How many angles a circuit has: four per block, one block per pair of neighbours and layer.

    >>> count_angles(5, layers=2, ansatz="simple"), count_angles(5, layers=2, ansatz="parted")
    (32, 64)
    """
    blocks = max(qubits - 1, 0) * layers
    return ANGLES_PER_BLOCK * blocks * (2 if ansatz == "parted" else 1)
