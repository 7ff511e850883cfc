"""What the study trains: the lines of its table, and the sizes of a run."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from torch import nn

from bistoch.lab.data import Corpus, load
from bistoch.lab.reproduce.causal_lm.controls import AverageBias, BorrowedBias, StreamedRatio
from bistoch.lab.train import Recipe
from bistoch.lab.train.seeds import preserved_random_state, seed_all
from bistoch.lab.train.sequences import NextCharacter
from bistoch.models import LanguageConfig, LanguageModel

Bias = Literal["own", "of the distance", "of another", "own, held fixed", "streamed ratio"]


class Line(NamedTuple):
    """A line of the table: where its bias comes from, and whether places are learned."""

    name: str
    operator: str
    bias: Bias = "own"
    learned_places: bool = False


@dataclass(frozen=True)
class Plan:
    """The sizes of a run: of the model, of its windows, and of what is measured afterwards.

    `tested` are the lengths of windows on the test split, the first that of training. `looked_at`
    windows are taken to look at attention.
    """

    data: str
    lines: tuple[Line, ...]
    recipe: Recipe
    depth: int = 2
    dim: int = 64
    heads: int = 4
    block: int = 32
    tested: tuple[int, ...] = (256, 1024)
    looked_at: int = 16

    @property
    def length(self) -> int:
        """The length of a window of training."""
        return self.tested[0]


def balanced(lam: float, block: int = 32) -> str:
    """The text of causal balance.

    >>> balanced(0.5)
    'causal_elastic(lam=0.5, block=32)'
    """
    return f"causal_elastic(lam={lam:g}, block={block})"


# the elasticity whose bias the controls have
CONTROLLED = 1.0
LINES = (
    Line("softmax", "softmax"),
    Line("lam 1", balanced(1.0)),
    Line("lam learned", "causal_elastic(learn='head', lam=0.5, block=32)"),
    Line("lam 0.5", balanced(0.5)),
    Line("sink logit", "sink(learn='head')"),
    Line("control: bias of the distance", balanced(CONTROLLED), "of the distance"),
    Line("control: mass of another text", balanced(CONTROLLED), "of another"),
    Line("learned places: softmax", "softmax", learned_places=True),
    Line("learned places: lam 1", balanced(1.0), learned_places=True),
    Line("lam 0.25", balanced(0.25)),
    Line("learned places: streamed ratio", balanced(1.0), "streamed ratio", True),
    Line("streamed ratio", balanced(1.0), "streamed ratio"),
    Line("control: own bias, held fixed", balanced(CONTROLLED), "own, held fixed"),
    Line("learned places: bias of the distance", balanced(CONTROLLED), "of the distance", True),
    Line("learned places: mass of another text", balanced(CONTROLLED), "of another", True),
)
FULL = Plan(
    "tiny-shakespeare",
    LINES,
    Recipe(epochs=1, batch_size=4, lr=2e-3, weight_decay=0.1),
)
SMOKE = Plan(
    "made words",
    LINES,
    Recipe(epochs=1, batch_size=8, lr=2e-3),
    depth=1, dim=8, heads=2, block=8, tested=(32, 64), looked_at=4,
)  # fmt: skip


def open_text(plan: Plan) -> NextCharacter:
    """The text of a plan in windows; that of a smoke run is made here."""
    corpus = _made_words() if plan.data == SMOKE.data else load(plan.data)
    if not isinstance(corpus, Corpus):
        raise ValueError(f"causal-lm: running text is needed, but {plan.data} is {corpus.kind}")
    return NextCharacter(corpus, length=plan.length)


def new_model(plan: Plan, line: Line, task: NextCharacter, seed: int) -> LanguageModel:
    """The model of a line before training: for one seed all start from the same weights."""
    config = LanguageConfig(
        vocabulary=task.sizes["vocabulary"], depth=plan.depth, dim=plan.dim, heads=plan.heads,
        places=plan.length if line.learned_places else None,
    )  # fmt: skip
    with preserved_random_state():
        seed_all("weights", seed)
        return LanguageModel(config, _operator(plan, line))


def _operator(plan: Plan, line: Line) -> str | nn.Module:
    text = line.operator.replace("block=32", f"block={plan.block}")
    if line.bias == "own":
        return text
    if line.bias == "of the distance":
        return AverageBias(CONTROLLED, plan.block, plan.heads, plan.length)
    if line.bias == "streamed ratio":
        return StreamedRatio(CONTROLLED, plan.block)
    return BorrowedBias(CONTROLLED, plan.block, shift=1 if line.bias == "of another" else 0)


def _made_words() -> Corpus:
    """A text of words that nobody knows: enough to see that everything works."""
    random = np.random.default_rng(0)
    syllables = [a + b for a in "bdfglmnprst" for b in "aeiou"]
    words = ["".join(random.choice(syllables, random.integers(1, 4))) for _ in range(50)]
    text = " ".join(random.choice(words, 2600))
    return Corpus("made words", "corpus", text[:6000], text[6000:7000], text[7000:9000])
