"""What the gallery shows beyond the pictures of other pages: a head of a trained encoder."""

import torch
from making.drawing import INK, save
from matplotlib.figure import Figure
from torch import Tensor

import bistoch
from bistoch.analysis import capture
from bistoch.lab.inspect.load import load_subject
from bistoch.lab.reproduce.encoder import model_name

TEXT = "The old man who lost his keys opened the door with a stone."
LAYER, HEAD = 1, 9


def trained_head() -> None:
    """A head of MiniLM whose first token takes most, and what balance shows behind it."""
    subject = load_subject(model_name(), [TEXT])
    with torch.no_grad(), capture(subject.model, states=None) as seen:
        subject.model(**subject.batches[0])
    plan = seen.plans[LAYER].plan[0, HEAD]
    balanced = bistoch.balance(plan.log(), iters=500)
    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    left, right = figure.subfigures(1, 2)
    draw(left, f"as it is: {subject.tokens[0][0]} receives {plan.sum(0).max():.1f} of 16", plan,
         subject.tokens[0])  # fmt: skip
    draw(right, "balanced: each word looks at the one before it", balanced, subject.tokens[0])
    save(figure, "head")


def draw(part, title: str, plan: Tensor, tokens: list[str]) -> None:
    """One plan with its tokens on both axes, under the bars of its column sums."""
    bars, matrix = part.subplots(2, 1, sharex=True, height_ratios=(1, 6))
    bars.bar(range(len(tokens)), plan.sum(0), color="#d55e00")
    bars.axhline(1, color=INK, linewidth=0.8, linestyle="--")
    bars.set_title(title, fontsize=10, color=INK)
    bars.set_ylabel("column sum", fontsize=8, color=INK)
    bars.tick_params(labelsize=7, bottom=False)
    bars.spines[["top", "right"]].set_visible(False)
    matrix.imshow(plan, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    matrix.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=8)
    matrix.set_yticks(range(len(tokens)), tokens, fontsize=8)
    matrix.tick_params(length=0)
