"""What the page shows, as one value."""

from dataclasses import dataclass

# where the operator is put: the head that is shown, all heads of its layer, or the whole model
WHERE = ("head", "layer", "model")
EPS, ITERS = (0.01, 10.0), (0, 50)


@dataclass(frozen=True)
class State:
    """All that the page shows.

    `picture` is the number of an example, or the pixels of one of the user's, packed as text.
    """

    model: str
    text: str = ""
    picture: str = "0"
    layer: int = 0
    head: int = 0
    operator: str = "elastic"
    where: str = "head"
    lam: float = 1.0
    eps: float = 1.0
    iters: int = 10
