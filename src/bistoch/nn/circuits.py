"""The operator whose plan is drawn by a circuit, with angles that may be learned."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from bistoch.functional import OPERATORS, inputs
from bistoch.functional.circuit import ANSAETZE
from bistoch.functional.inputs import Option
from bistoch.functional.quantum import default_theta, theta_length, token_qubits
from bistoch.nn.heads import check_heads
from bistoch.nn.operators import OperatorModule


class Quantum(OperatorModule):
    """The plan of a circuit whose angles are the scores times theta, which may be learned per head.

    Args:
        ansatz, layers, ancilla, shots, eps, scale, backend: as for `bistoch.quantum_attention`.
        learn: "none" for the fixed theta of the operator, or "head" for a parameter `theta` with
            one row per head, which starts there.
        tokens: the longest sequence, for `learn="head"`: it fixes the size of the circuit, also for
            shorter sequences. Without it the circuit is as large as each sequence needs.
        heads: how many heads there are, for `learn="head"`; tokens are then (..., heads, n, d).

    >>> import torch
    >>> operator = Quantum(learn="head", heads=2, tokens=7, layers=1)
    >>> operator, operator.theta.shape
    (quantum(layers=1, learn='head', tokens=7, heads=2), torch.Size([2, 64]))
    >>> q, k, v = torch.randn(3, 5, 2, 7, 4).unbind()
    >>> operator(q, k, v).shape
    torch.Size([5, 2, 7, 4])
    """

    theta: Tensor | None

    def __init__(
        self,
        ansatz: str = "parted",
        layers: int = 4,
        ancilla: int = 2,
        shots: int | None = None,
        eps: Option = 1.0,
        scale: float | None = None,
        learn: Literal["none", "head"] = "none",
        tokens: int | None = None,
        heads: int | None = None,
        backend: str = "auto",
    ) -> None:
        inputs.check_choice("Quantum", "learn", learn, ("none", "head"))
        if tokens is not None:
            inputs.check_count("Quantum", "tokens", tokens, least=1)
        qubits = None if tokens is None else token_qubits(tokens)
        theta = None
        if learn == "head":
            theta = _theta_per_head(qubits, ancilla, layers, ansatz, heads)
        super().__init__(
            OPERATORS["quantum"],
            theta=theta, ansatz=ansatz, layers=layers, ancilla=ancilla, qubits=qubits, shots=shots,
            eps=eps, scale=scale, backend=backend,
        )  # fmt: skip
        self.learn = learn
        self.tokens = tokens
        self.heads = heads if learn == "head" else None

    def _written(self) -> dict[str, Any]:
        written = super()._written()
        # the size of the circuit and its parameter are shown by the words that make them
        written = {name: value for name, value in written.items() if name not in _MADE}
        if self.learn == "head":
            return written | {"learn": self.learn, "tokens": self.tokens, "heads": self.heads}
        return written if self.tokens is None else written | {"tokens": self.tokens}


_MADE = ("theta", "qubits")


def _theta_per_head(
    qubits: int | None, ancilla: int, layers: int, ansatz: str, heads: int | None
) -> nn.Parameter:
    heads = check_heads("Quantum", heads)
    if qubits is None:
        raise ValueError(
            "Quantum: learn='head' needs tokens, the longest sequence, which fixes the size of "
            f"theta; write for example Quantum(learn='head', heads={heads}, tokens=64)"
        )
    inputs.check_circuit("Quantum", ansatz, layers, ancilla, ANSAETZE)
    length = theta_length(qubits, ancilla, layers, ansatz)
    return nn.Parameter(default_theta(length, torch.empty(0)).repeat(heads, 1))
