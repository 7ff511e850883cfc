"""When the loss is no number any more: say where, and what it looks like, instead of going on."""

from torch import Tensor, nn


class DivergedError(ValueError):
    """The loss or a gradient is not finite; the sentence is a diagnosis."""


def diagnose(
    model: nn.Module,
    loss: float,
    *,
    step: int,
    epoch: int,
    rate: float,
    norm: float | None,
    before: float | None = None,
    split: str | None = None,
) -> DivergedError:
    """What to say of a model whose loss or gradients are not finite.

    Args:
        model: with the gradients of the step.
        loss: of the step, or of a split after it.
        step, epoch: counted from one.
        rate: the learning rate of the step.
        norm: of all gradients, if the loss was finite.
        before: the norm in the step before, if there was one.
        split: whose loss it is, if it is not that of the step.

    >>> layer = nn.Linear(1, 1)
    >>> layer.weight.data.fill_(float("nan"))
    tensor([[nan]])
    >>> print(diagnose(layer, float("nan"), step=7, epoch=1, rate=0.1, norm=None))
    train: the loss is nan at step 7 (epoch 1, learning rate 0.1); the weights of weight are not
    finite already; lower the learning rate, or set clip
    """
    what = f"the loss is {loss:g}" if norm is None else f"the gradient has the norm {norm:g}"
    if split is not None:
        what = f"the loss on {split} is {loss:g}"
    named = list(model.named_parameters())
    spoiled = [name for name, p in named if not _finite(p)]
    gradients = {name: p.grad for name, p in named if p.grad is not None}
    broken = [name for name, gradient in gradients.items() if not _finite(gradient)]
    sizes = {name: g.detach().abs().max().item() for name, g in gradients.items() if _finite(g)}
    facts = []
    if spoiled:
        facts.append(f"the weights of {_some(spoiled)} are not finite already")
    if broken:
        facts.append(f"the gradient of {_some(broken)} is not finite")
    if sizes:
        largest = max(sizes, key=lambda name: sizes[name])
        facts.append(f"the largest finite gradient is {sizes[largest]:.3g}, in {largest}")
    if before is not None:
        facts.append(f"the step before, all gradients together had the norm {before:.3g}")
    return DivergedError(
        f"train: {what} at step {step} (epoch {epoch}, learning rate {rate:g}); "
        + "".join(f"{fact}; " for fact in facts)
        + "lower the learning rate, or set clip"
    )


def _finite(x: Tensor) -> bool:
    return bool(x.detach().isfinite().all())


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more
