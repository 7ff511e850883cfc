"""Quantum attention: the plan that a circuit draws, whose angles are the scores."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from bistoch.functional import inputs
from bistoch.functional._export import export_whole
from bistoch.functional.circuit import ANSAETZE, CircuitProblem, choose, count_angles
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.square import restore, square_scores, stochastic_complement


class Circuit(NamedTuple):
    """What a user may say about the circuit, not yet checked."""

    theta: Tensor | None
    ansatz: str
    layers: int
    ancilla: int
    qubits: int | None
    backend: str


@export_whole
def quantum_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    *,
    theta: Float[Tensor, "..."] | None = None,
    ansatz: str = "parted",
    layers: int = 4,
    ancilla: int = 2,
    qubits: int | None = None,
    shots: int | None = None,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n e"]:
    """Attend with the doubly stochastic plan of `quantum_plan`, whose arguments these are.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 8, 5, 4).unbind()
    >>> bistoch.quantum_attention(q, k, v).shape
    torch.Size([2, 8, 5, 4])
    """
    operator = "quantum_attention"
    batch = inputs.check_tokens(operator, query, key, value)
    circuit = Circuit(theta, ansatz, layers, ancilla, qubits, backend)
    plan, value = _plan(
        operator, batch, query, key, value, circuit, eps=eps, mask=mask, query_mask=query_mask,
        key_mask=key_mask, scale=scale,
    )  # fmt: skip
    plan = _measure(operator, plan, shots, generator)
    return (plan @ value.reshape(*batch, *value.shape[1:])).to(query.dtype)


@export_whole
def quantum_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    *,
    theta: Float[Tensor, "..."] | None = None,
    ansatz: str = "parted",
    layers: int = 4,
    ancilla: int = 2,
    qubits: int | None = None,
    shots: int | None = None,
    eps: Option = 1.0,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*b n m"]:
    """A doubly stochastic plan: where a circuit takes each query, if the scores are its angles.

        P_ij = sum_ab |U_(ia)(jb)|^2 / 2^ancilla,   angles of U = theta * vec(S), S repeated

    Exact simulation; there must be as many queries as keys. If their number is no power of two,
    the circuit is as large as the next one, and mass that goes to tokens that do not exist walks on
    until it is back: the stochastic complement, again doubly stochastic.

    Args:
        query, key, query_mask, key_mask, scale: as for `elastic_attention`. Padding must leave as
            many queries as keys. Single pairs cannot be hidden: `mask` must be None.
        theta: how strongly each score turns its angle: as many numbers as the circuit has angles,
            or the scores entries, if these are more. Leading axes broadcast, for example one theta
            per head; differentiable. By default fixed numbers spread over [-1, 1].
        ansatz: "simple", "parted", "centrosymmetric" or "trotter".
        layers: how often the pattern of blocks is repeated.
        ancilla: qubits beside those that count the tokens; the plan is a mean over their states.
        qubits: those that count the tokens, by default as few as possible. With a fixed number a
            padded sequence and the same sequence alone have the same plan.
        shots: estimate each row from so many measurements instead of knowing it. Rows still sum to
            one, columns do on average, and the gradient is that of the exact plan.
        eps: temperature; the scores are divided by it.
        generator: where the measurements come from.
        backend: "auto", "reference" (readable, any device) or "cpu" (Numba kernels, for many small
            circuits at once).

    >>> import torch, bistoch
    >>> plan = bistoch.quantum_plan(*torch.randn(2, 7, 4, dtype=torch.float64).unbind())
    >>> plan.sum(0)
    tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000], dtype=torch.float64)

    Reference: Born et al., Quantum doubly stochastic transformers, 2025.
    """
    operator = "quantum_plan"
    batch = inputs.check_tokens(operator, query, key)
    circuit = Circuit(theta, ansatz, layers, ancilla, qubits, backend)
    plan, _ = _plan(
        operator, batch, query, key, None, circuit, eps=eps, mask=mask, query_mask=query_mask,
        key_mask=key_mask, scale=scale,
    )  # fmt: skip
    plan = _measure(operator, plan, shots, generator)
    return plan.to(query.dtype)


def token_qubits(tokens: int) -> int:
    """How many qubits count so many tokens.

    >>> [token_qubits(tokens) for tokens in (0, 1, 2, 3, 8, 9)]
    [0, 0, 1, 2, 3, 4]
    """
    return max(tokens - 1, 0).bit_length()


def theta_length(qubits: int, ancilla: int, layers: int, ansatz: str) -> int:
    """How many numbers theta has: one per angle of the circuit, and at least one per score.

    >>> theta_length(3, ancilla=4, layers=16, ansatz="simple")
    384
    >>> theta_length(8, ancilla=2, layers=4, ansatz="simple") == 256**2
    True
    """
    return max(count_angles(qubits + ancilla, layers, ansatz), 4**qubits)


def default_theta(length: int, like: Tensor) -> Float[Tensor, "length"]:
    """Fixed numbers spread evenly over [-1, 1]: multiples of the golden ratio, modulo one.

    >>> default_theta(4, torch.zeros(1))
    tensor([ 0.2361, -0.5279,  0.7082, -0.0557])
    """
    steps = torch.arange(1, length + 1, dtype=torch.float64, device=like.device)
    return (2 * (steps * (5**0.5 - 1) / 2).frac() - 1).to(like.dtype)


def _plan(
    operator: str, batch: torch.Size, query: Tensor, key: Tensor, value: Tensor | None,
    circuit: Circuit, **options: Any,
) -> tuple[Float[Tensor, "*b n n"], Any]:  # fmt: skip
    """The exact plan in working precision, and the values to apply it to."""
    inputs.check_circuit(operator, circuit.ansatz, circuit.layers, circuit.ancilla, ANSAETZE)
    n = query.shape[-2]
    qubits = token_qubits(n) if circuit.qubits is None else circuit.qubits
    inputs.check_qubits(operator, qubits, n)
    length = theta_length(qubits, circuit.ancilla, circuit.layers, circuit.ansatz)
    if circuit.theta is not None:
        inputs.check_theta(operator, circuit.theta, length, batch, n, query.device)
    square = square_scores(operator, batch, query, key, value, **options)
    theta = default_theta(length, square.scores) if circuit.theta is None else circuit.theta
    theta = theta.to(square.scores).expand(*batch, length).reshape(-1, length)
    plan = _draw(operator, square.scores, theta, qubits, circuit)
    missing = 2**qubits - n
    if missing or square.real is not None:
        real = square.real
        if real is None:
            real = plan.new_ones(plan.shape[0], n, dtype=torch.bool)
        plan = stochastic_complement(plan, pad(real, (0, missing)))[:, :n, :n]
    return restore(plan, square, batch), square.value


def _draw(
    operator: str,
    scores: Float[Tensor, "B n n"],
    theta: Float[Tensor, "B length"],
    qubits: int,
    circuit: Circuit,
) -> Float[Tensor, "B states states"]:
    """Run the circuit and average over the states of the ancilla."""
    count = count_angles(qubits + circuit.ancilla, circuit.layers, circuit.ansatz)
    angles = _angles(scores, theta, qubits, count)
    problem = CircuitProblem(angles, qubits, circuit.ancilla, circuit.layers, circuit.ansatz)
    plan = choose(operator, problem, circuit.backend).solve(problem)
    # rounding makes every gate a little longer or shorter than one, the same for all states
    return plan * (2**qubits / plan.detach().sum((-2, -1), keepdim=True))


def _angles(
    scores: Float[Tensor, "B n n"], theta: Float[Tensor, "B length"], qubits: int, count: int
) -> Float[Tensor, "B angles"]:
    """Theta times the scores, which are repeated until every angle has one.

    If there are more scores than angles, those that come round again are added: none is left out.
    """
    if count == 0:
        return scores.new_zeros(scores.shape[0], 0)
    length = theta.shape[-1]
    missing = 2**qubits - scores.shape[-1]
    vector = pad(scores, (0, missing, 0, missing)).flatten(1)
    turns = theta * vector.repeat(1, -(-length // 4**qubits))[:, :length]
    return pad(turns, (0, -length % count)).unflatten(-1, (-1, count)).sum(1)


def _measure(
    operator: str,
    plan: Float[Tensor, "*b n m"],
    shots: int | None,
    generator: torch.Generator | None,
) -> Float[Tensor, "*b n m"]:
    """Relative frequencies of so many draws from every row, with the gradient of the plan."""
    inputs.check_generator(operator, generator, plan.device)
    if shots is None:
        return plan
    inputs.check_count(operator, "shots", shots, least=1)
    with torch.no_grad():
        # added from the end, so that the last key of a row gets what is left with probability one
        tails = plan.double().flip(-1).cumsum(-1).flip(-1)
        # a row of NaN cannot be drawn from, and stays one
        chances = (plan / torch.where(tails > 0, tails, 1)).nan_to_num(0.0)
        left = shots * tails.gt(0).any(-1).double()
        counts = torch.zeros_like(tails)
        for key in range(plan.shape[-1]):
            chance = chances[..., key].clamp(0, 1)
            counts[..., key] = torch.binomial(left, chance, generator=generator)
            left = left - counts[..., key]
        drawn = (counts / shots).to(plan.dtype)
    return plan + (drawn - plan.detach())
