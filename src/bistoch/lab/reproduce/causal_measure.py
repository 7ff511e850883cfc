"""What is measured of a trained model: bits on two lengths, and what its attention does."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bistoch.analysis import capture, metrics
from bistoch.functional import causal_elastic_plan
from bistoch.functional.causal.reference import prefix_plan
from bistoch.lab.compare.attention import learned_lam

# windows that are read at once
AT_ONCE = 8
# what is measured of attention: the title of its column, and how it is written
METRICS = {
    "sink_rate": ("sink rate", ".2f"), "first": ("first token", ".3f"),
    "overload": ("overload", ".1f"), "early": ("first half", ".1f"),
    "deviation": ("deviation", ".2f"), "kurtosis": ("kurtosis", ".1f"),
}  # fmt: skip


@torch.no_grad()
def bits(model: nn.Module, text: Int[Tensor, "n"], length: int, common: int) -> float:
    """Bits per character of a text in windows side by side.

    Args:
        model: of the next character.
        text: as numbers.
        length: of a window.
        common: only as much is read as fills windows of this length, so that scores of several
            lengths are of the same characters.
    """
    count = (len(text) - 1) // common * common
    inputs, targets = (text[start : start + count].reshape(-1, length) for start in (0, 1))
    total = 0.0
    for some, wanted in zip(inputs.split(AT_ONCE), targets.split(AT_ONCE), strict=True):
        found = model(some).float().flatten(0, 1)
        total += nn.functional.cross_entropy(found, wanted.flatten(), reduction="sum").item()
    return total / count / math.log(2)


@torch.no_grad()
def attention(model: nn.Module, windows: Int[Tensor, "b n"]) -> dict[str, Any]:
    """What attention does, as means over layers, heads and windows, and the size of states.

    `sink_rate` is the share of plans with a sink, `first` the mean attention on the first token.
    The overload of a key is what it received over its share of uniform causal attention:
    `overload` is the largest, `early` the largest in the first half of a window, `deviation` the
    mean of its distance from one. `kurtosis` is that of the states after every block, 3 for a
    Gaussian.
    """
    found: dict[str, list[Tensor]] = {}
    # all at once: the mass of another text is that of a neighbour in the batch
    with capture(model, budget=4 << 30, problems=None) as seen:
        model(windows)
    for record in seen.plans:
        for name, values in _of_plan(record.plan.float()).items():
            found.setdefault(name, []).append(values.flatten())
    result: dict[str, Any] = {name: torch.cat(some).mean().item() for name, some in found.items()}
    states = [kurtosis(record.state.float()) for record in seen.states[1:]]
    result["kurtosis"] = torch.stack(states).mean().item()
    result["lam"] = learned_lam(model)
    return result


@torch.no_grad()
def beside_oracle(model: nn.Module, window: Int[Tensor, "n"], block: int) -> dict[str, Any]:
    """What causal balance would do in the heads of a model that was trained with softmax.

    For softmax, two elasticities and the oracle, which balances every prefix exactly: the numbers
    of `attention`, and how far rows are from those of the oracle in L1; means over heads.
    """
    with capture(model, budget=1 << 30, problems=None, states=None) as seen:
        model(window[None])
    plans = torch.cat([record.plan.flatten(0, 1) for record in seen.plans]).double()
    # scores, but for what every score of a row shares
    scores = plans.clamp_min(torch.finfo(torch.float32).tiny).log()
    oracle = torch.stack([prefix_plan(one, iters=20) for one in scores])
    unit = torch.eye(len(window), dtype=scores.dtype)
    found = {"softmax": plans}
    for lam in (0.5, 1.0):
        balanced = causal_elastic_plan(scores, unit, lam=lam, block=block, scale=1.0)
        found[f"lam {lam:g}"] = balanced
    found["the oracle"] = oracle
    return {
        name: {key: values.mean().item() for key, values in _of_plan(plan).items()}
        | {"far": (plan - oracle).abs().sum(-1).mean().item()}
        for name, plan in found.items()
    }


def kurtosis(state: Float[Tensor, "..."]) -> Float[Tensor, ""]:
    """The fourth moment of all entries over the square of the second: large with outliers.

    >>> kurtosis(torch.tensor([1.0, -1.0, 1.0, -1.0])).item()
    1.0
    """
    centred = state.double() - state.double().mean()
    return centred.pow(4).mean() / centred.square().mean().square().clamp_min(1e-300)


def _of_plan(plan: Float[Tensor, "b h n n"]) -> dict[str, Tensor]:
    n = plan.shape[-1]
    fair = (1 / torch.arange(1, n + 1, dtype=plan.dtype)).flip(0).cumsum(0).flip(0)
    load, half = plan.sum(-2) / fair, max(n // 2, 1)
    # few rows see the last keys, and one is not a crowd
    score = metrics.sink_score(plan, causal=True)[..., :half]
    return {
        "sink_rate": (score.amax(-1) > metrics.SINK).to(plan.dtype),
        "first": plan[..., 0].mean(-1),
        "overload": load.amax(-1),
        "early": load[..., :half].amax(-1),
        "deviation": (load - 1).abs().mean(-1),
    }
