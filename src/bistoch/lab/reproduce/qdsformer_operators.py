"""The operators that the study of QDSFormer trains, and what is published of them."""

from collections.abc import Mapping
from typing import NamedTuple


class Published(NamedTuple):
    """A number of the paper: what it was measured with, mean and spread in percent."""

    what: str
    accuracy: float
    spread: float | None = None

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread}"
        return f"{self.what} {self.accuracy}{spread}"


# angles are scores times fixed numbers, between -1 and 1 here; those of the paper are not known.
# the second circuit has a ninth of the angles (by default scores are divided by sqrt(128)), which
# was chosen by training pictures alone
CIRCUITS = ("quantum(layers=8)", "quantum(layers=8, scale=0.01)")
# ours, and what the paper compares with; it has no elastic attention. The kernels are named because
# a batch of plans this small is otherwise left to torch, which spares compiling, not training. QR
# is there twice, since the paper does not say whether its columns are keys or queries
OPERATORS: dict[str, Published | None] = {
    "softmax": Published("softmax", 88.9, 0.1),
    "sinkhorn(backend='cpu')": Published("Sinkhorn", 89.1, 0.7),
    "orthogonal": Published("QR", 89.3, 0.1),
    "orthogonal(method='lq')": Published("QR", 89.3, 0.1),
    "elastic(lam=0.5, backend='cpu')": None,
    "elastic(learn='head', backend='cpu')": None,
    **{circuit: Published("circuit of 8 layers", 89.8) for circuit in CIRCUITS},
}
# circuits of the depth of the main results, which take twice as long
DEEP = ("quantum(layers=16)", "quantum(layers=16, scale=0.01)")
# the circuit of sixteen layers and sixteen qubits, which the main results are of
CIRCUIT = Published("circuit of 16 layers", 90.0, 0.2)


def group(
    softmax: Published, sinkhorn: Published, qr: Published, circuit: Published
) -> dict[str, Published | None]:
    """The operators that are trained on another data set, and what is published of them."""
    return {
        "softmax": softmax, "sinkhorn(backend='cpu')": sinkhorn, "orthogonal(method='lq')": qr,
        "elastic(learn='head', backend='cpu')": None, **dict.fromkeys(CIRCUITS, circuit),
    }  # fmt: skip


# the same model on the first pictures of FashionMNIST, whose plans are compared too, and on MNIST
GROUPS: dict[str, dict[str, Published | None]] = {
    "fashion-mnist": group(
        Published("softmax", 88.9, 0.1), Published("Sinkhorn", 89.1, 0.7),
        Published("QR", 89.3, 0.1), Published("circuit", 90.0, 0.2),
    ),
    "mnist": group(
        Published("softmax", 98.1, 0.3), Published("Sinkhorn", 98.2, 0.3),
        Published("QR", 98.3, 0.1), Published("circuit", 98.4, 0.1),
    ),
}  # fmt: skip
# pictures of training and of test; None is all
SAMPLES: dict[str, int | None] = {"fashion-mnist": 4000, "mnist": None}


def published_of(
    known: Mapping[str, Published | None], circuit: Published | None, operator: str
) -> Published | str:
    """What is published of an operator; of deep circuits, what is of the circuit on that data."""
    return (circuit if operator in DEEP else known.get(operator)) or ""
