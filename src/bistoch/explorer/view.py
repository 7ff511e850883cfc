"""What a state looks like: two plans, their column sums and entropies, and two outputs."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from bistoch.analysis import metrics
from bistoch.explorer.state import State
from bistoch.explorer.subject import Subject, operator_text


@dataclass(frozen=True)
class Side:
    """A plan with its numbers: the entropy is the mean over rows in nats, `peak` the largest sum.

    `token` is the key that receives `peak`.
    """

    plan: Float[Tensor, "n n"]
    sums: Float[Tensor, " n"]
    entropy: float
    peak: float
    token: str
    output: dict[str, float]


@dataclass(frozen=True)
class View:
    """A head of the model as it is, and with the operator of the state."""

    state: State
    tokens: list[str]
    before: Side
    after: Side
    # the largest column sum of every layer and head of the model as it is
    peaks: list[list[float]]

    @property
    def operator(self) -> str:
        """The operator with its options, as text."""
        return operator_text(self.state)


def look(subject: Subject, state: State) -> View:
    """Run the model twice, as it is and with the operator, and measure the head of the state."""
    sides = []
    for swapped in (False, True):
        ran = subject.run(state, swapped=swapped)
        plan = ran.plans[state.layer][state.head]
        sums = metrics.column_sums(plan)
        sides.append(
            Side(
                plan, sums, metrics.row_entropy(plan).mean().item(), sums.max().item(),
                ran.tokens[int(sums.argmax())], ran.output,
            )
        )  # fmt: skip
    return View(state, ran.tokens, sides[0], sides[1], subject.peaks(state))


def finding(subject: Subject, view: View) -> str:
    """One sentence about what is seen.

    It says how much the fullest key receives before and after, and what becomes of the output.
    """
    before, after, state = view.before, view.after, view.state
    n = len(view.tokens)
    return (
        f"In layer {state.layer}, head {state.head}, {subject.describe(before.token)} receives "
        f"{before.peak:.1f} of {n} units of attention. With {view.operator} "
        f"{_places(state)}, none receives more than {after.peak:.1f}."
    )


def change_of_output(view: View) -> str:
    """One sentence about the output."""
    before, after = view.before.output, view.after.output
    first, now = (max(output, key=lambda name: output[name]) for output in (before, after))
    moved = max(abs(after.get(name, 0.0) - value) for name, value in before.items())
    if first == now:
        return f"The highest stays {first!r}; the largest change is {moved:.3f}."
    return f"The highest was {first!r} and is now {now!r}; the largest change is {moved:.3f}."


def python_lines(subject: Subject, state: State) -> str:
    """A program that computes what is shown, and prints it."""
    return "\n".join(
        [
            *subject.lines(state),
            "",
            "column_sums = metrics.column_sums(plan)",
            "entropy = metrics.row_entropy(plan).mean()",
            'print(f"largest column sum {column_sums.max():.4f}, entropy {entropy:.4f}")',
            "for name, value in output.items():",
            '    print(f"{value:.4f} {name}")',
        ]
    )


def _places(state: State) -> str:
    return {"head": "in this head", "layer": "in all heads of this layer"}.get(
        state.where, "in the whole model"
    )
