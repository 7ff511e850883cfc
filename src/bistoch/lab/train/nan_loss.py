"""A loss or gradient that is NaN or infinite: stop, and say where and what it looks like."""

from torch import Tensor, nn

from bistoch.lab.train.ranks import whole


class DivergedError(ValueError):
    """The loss or a gradient is not finite; the message is a diagnosis."""


def diagnose(
    model: nn.Module, what: str, *, step: int, epoch: int, lr: float, norm: float | None = None
) -> DivergedError:
    """The error for a model with its gradients, where `what` is a sentence on what is not finite.

    Steps and epochs are counted from one; `norm` is the gradient norm of the step before.

    >>> layer = nn.Linear(1, 1)
    >>> layer.weight.data.fill_(float("nan"))
    tensor([[nan]])
    >>> print(diagnose(layer, "the loss is nan", step=7, epoch=1, lr=0.1))
    train: the loss is nan at step 7 (epoch 1, learning rate 0.1); the weights of weight are not
    finite already; lower the learning rate, or set clip
    """
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    bad_weights = [name for name, p in model.named_parameters() if not _is_finite(p)]
    bad_gradients = [name for name, gradient in gradients.items() if not _is_finite(gradient)]
    finite = {name: x for name, x in gradients.items() if name not in bad_gradients}
    sizes = {name: whole(x).abs().max().item() for name, x in finite.items()}
    facts = []
    if bad_weights:
        facts.append(f"the weights of {_list(bad_weights)} are not finite already")
    if bad_gradients:
        facts.append(f"the gradient of {_list(bad_gradients)} is not finite")
    if sizes:
        largest = max(sizes, key=lambda name: sizes[name])
        facts.append(f"the largest finite gradient is {sizes[largest]:.3g}, in {largest}")
    if norm is not None:
        facts.append(f"the gradient norm of the step before was {norm:.3g}")
    facts.append("lower the learning rate, or set clip")
    return DivergedError(
        f"train: {what} at step {step} (epoch {epoch}, learning rate {lr:g}); {'; '.join(facts)}"
    )


def _is_finite(x: Tensor) -> bool:
    return bool(whole(x.detach()).isfinite().all())


def _list(names: list[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more
