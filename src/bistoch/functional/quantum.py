"""Quantum attention: the plan that a circuit draws, whose angles are the scores."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from bistoch.functional import _inputs
from bistoch.functional._inputs import Mask, Option
from bistoch.functional.circuit import ANSAETZE, circuit_unitary, count_angles
from bistoch.functional.elastic.problem import full_precision
from bistoch.functional.square import restore, square_scores, stochastic_complement


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
) -> Float[Tensor, "*b n e"]:
    """Attend with the doubly stochastic plan of `quantum_plan`, whose arguments these are.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 8, 5, 4).unbind()
    >>> bistoch.quantum_attention(q, k, v).shape
    torch.Size([2, 8, 5, 4])
    """
    operator = "quantum_attention"
    batch = _inputs.check_tokens(operator, query, key, value)
    plan = _plan(
        operator, batch, query, key, theta, ansatz, layers, ancilla, qubits, shots, generator,
        {"eps": eps, "mask": mask, "query_mask": query_mask, "key_mask": key_mask, "scale": scale},
    )  # fmt: skip
    with full_precision(query.device):
        return (plan @ value.to(plan.dtype)).to(query.dtype)


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
) -> Float[Tensor, "*b n m"]:
    """A doubly stochastic plan: where a circuit takes each query, if the scores are its angles.

        P_ij = sum_ab |U_(ia)(jb)|^2 / 2^ancilla,   angles of U = theta * vec(S), S repeated

    Exact simulation; there must be as many queries as keys. If their number is no power of two,
    the circuit is as large as the next one, and mass that goes to tokens that do not exist walks on
    until it is back: the stochastic complement, again doubly stochastic.

    Args:
        query, key, query_mask, key_mask, scale: as for `elastic_attention`. Padding must leave as
            many queries as keys. Single pairs cannot be hidden: `mask` must be None.
        theta: how strongly each score turns its angle, with as many entries as the circuit has angles, or as there
            broadcasts to the leading axes. By default fixed numbers spread over [-1, 1].
        ansatz: "simple", "parted", "centrosymmetric" or "trotter".
        layers: how often the pattern of blocks is repeated.
        ancilla: qubits beside those that count the tokens; the plan is a mean over their states.
        qubits: those that count the tokens, by default as few as possible. With a fixed number a
            padded sequence and the same sequence alone have the same plan.
        shots: estimate each row from so many measurements instead of knowing it. Rows still sum to
            one, columns do on average, and the gradient is that of the exact plan.
        eps: temperature; the scores are divided by it.
        generator: where the measurements come from.

    >>> import torch, bistoch
    >>> plan = bistoch.quantum_plan(*torch.randn(2, 7, 4, dtype=torch.float64).unbind())
    >>> plan.sum(0)
    tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000], dtype=torch.float64)

    Reference: Born et al., Quantum doubly stochastic transformers, 2025.
    """
    operator = "quantum_plan"
    batch = _inputs.check_tokens(operator, query, key)
    plan = _plan(
        operator, batch, query, key, theta, ansatz, layers, ancilla, qubits, shots, generator,
        {"eps": eps, "mask": mask, "query_mask": query_mask, "key_mask": key_mask, "scale": scale},
    )  # fmt: skip
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
    operator, batch, query, key, theta, ansatz, layers, ancilla, qubits, shots, generator, options
) -> Float[Tensor, "*b n n"]:
    _inputs.check_choice(operator, "ansatz", ansatz, ANSAETZE)
    _inputs.check_count(operator, "layers", layers)
    _inputs.check_count(operator, "ancilla", ancilla)
    if shots is not None:
        _inputs.check_count(operator, "shots", shots, least=1)
    n = query.shape[-2]
    qubits = token_qubits(n) if qubits is None else qubits
    _inputs.check_qubits(operator, qubits, n)
    length = theta_length(qubits, ancilla, layers, ansatz)
    if theta is not None:
        _inputs.check_theta(operator, theta, length, batch, n)
    with full_precision(query.device):
        square = square_scores(operator, batch, query, key, **options)
        if theta is None:
            theta = default_theta(length, square.scores)
        theta = theta.to(square.scores).expand(*batch, length).reshape(-1, length)
        angles = _angles(square.scores, theta, qubits, count_angles(qubits + ancilla, layers, ansatz))
        unitary = circuit_unitary(angles, qubits + ancilla, layers, ansatz)
        plan = _block_average(unitary, 2**ancilla)
        missing = 2**qubits - n
        if missing or square.real is not None:
            real = square.real
            if real is None:
                real = torch.ones_like(square.scores[..., 0], dtype=torch.bool)
            plan = stochastic_complement(plan, pad(real, (0, missing)))[:, :n, :n]
        plan = restore(plan, square, batch)
        return plan if shots is None else measure(plan, shots, generator)


def _angles(
    scores: Float[Tensor, "B n n"], theta: Float[Tensor, "B length"], qubits: int, count: int
) -> Float[Tensor, "B angles"]:
    """Theta times the scores, which are repeated until every angle has one.

    If there are more scores than angles, those that come round again are added: none is left out.
    """
    length = theta.shape[-1]
    missing = 2**qubits - scores.shape[-1]
    vector = pad(scores, (0, missing, 0, missing)).flatten(1)
    repeated = vector.repeat(1, -(-length // 4**qubits))[:, :length]
    if count == 0:
        return scores.new_zeros(len(scores), 0)
    turns = theta * repeated
    return pad(turns, (0, -length % count)).unflatten(-1, (-1, count)).sum(1)


def _block_average(unitary: Tensor, copies: int) -> Float[Tensor, "B n n"]:
    squares = unitary.real.square() + unitary.imag.square()
    tokens = squares.shape[-1] // copies
    blocks = squares.reshape(-1, tokens, copies, tokens, copies)
    return blocks.sum((2, 4)) / copies


def measure(
    plan: Float[Tensor, "*b n m"], shots: int, generator: torch.Generator | None
) -> Float[Tensor, "*b n m"]:
    """Relative frequencies of `shots` draws from every row, with the gradient of the exact plan.

    >>> measure(torch.tensor([[0.25, 0.75]]), 4, torch.Generator().manual_seed(0)).sum()
    tensor(1.)
    """
    with torch.no_grad():
        # in double, so that the last key of a row takes what is left with probability one
        rows = plan.double()
        tails = rows.flip(-1).cumsum(-1).flip(-1)
        left = torch.full_like(rows[..., 0], shots) * (tails[..., :1] > 0).squeeze(-1)
        counts = []
        for chance, tail in zip(rows.unbind(-1), tails.unbind(-1), strict=True):
            chance = chance / torch.where(tail > 0, tail, 1)
            counts.append(torch.binomial(left, chance.clamp(0, 1), generator=generator))
            left = left - counts[-1]
        drawn = (torch.stack(counts, -1) / shots).to(plan.dtype)
    return plan + (drawn - plan.detach())
