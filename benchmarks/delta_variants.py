"""Variants of delta attention that are not in the library, on heads of a language model.

    python benchmarks/delta_variants.py --out benchmarks/delta-variants.json

reads one text of WikiText-2 with SmolLM2-135M, keeps queries, keys and values of some layers, and
compares with full causal attention, head by head:

* where dense rows are placed: every 16th, or as many where the query or the delta changes, by a
  rule that knows only the past; and the best places of all, which only hindsight knows;
* whether the dense rows may also balance what keys receive: their column sums give a bias of the
  keys, as in `causal_elastic`, which sees all rows.

Errors are relative norms over the rows that may lose a key. Needs the packages of `delta-lm`.
"""

import argparse
import json
import math
from pathlib import Path
from typing import NamedTuple

import torch
from delta_places import STRIDE, best_placed, by_delta, by_query, placed
from heads import record
from torch import Tensor

import bistoch
from bistoch.lab.data import load
from bistoch.lab.machine import describe_machine
from bistoch.lab.reproduce.smollm import load_smollm

WINDOW, SINK = 256, 16
FIRST = WINDOW + SINK  # the first row that loses a key; a multiple of STRIDE
PRIOR = 0.01  # as in causal_elastic


class Parts(NamedTuple):
    """Plans of rows over all keys, those kept, and those left out, with the logs of their sums."""

    full: Tensor
    sparse: Tensor
    missed: Tensor
    log_kept: Tensor
    log_missed: Tensor


def take_apart(scores: Tensor, first: int = 0) -> Parts:
    """Softmax rows from `first` on, and what sink and window keep of them."""
    rows, keys = torch.arange(first, scores.shape[-1])[:, None], torch.arange(scores.shape[-1])
    causal = keys <= rows
    kept = causal & ((keys > rows - WINDOW) | (keys < SINK))
    full, near, far = (scores.masked_fill(~x, -math.inf) for x in (causal, kept, causal & ~kept))
    plans = (x.softmax(-1).nan_to_num(0) for x in (full, near, far))
    return Parts(*plans, near.logsumexp(-1), far.logsumexp(-1))


def group_errors(q: Tensor, k: Tensor, v: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Squared errors E[g, i] of row i if row g is the last dense one, for all rows from FIRST on.

    With them the full results, and the deltas.
    """
    late, scale = q[FIRST:], q.shape[-1] ** -0.5
    parts = take_apart(late @ k.mT * scale, FIRST)
    full, sparse, missed = (plan @ v for plan in parts[:3])
    delta, own = full - sparse, torch.eye(len(late), dtype=torch.bool)
    lost = delta.square().sum(-1)

    def mixed(share: Tensor) -> Tensor:
        """|share (missed_g - sparse_i) - delta_i|^2, for all pairs."""
        along = missed @ delta.mT - (sparse * delta).sum(-1)
        squared = share.square() * torch.cdist(missed, sparse).square() - 2 * share * along + lost
        return squared.masked_fill(own, 0)

    mean_key = parts.missed @ k
    moved = (mean_key @ late.mT - (mean_key * late).sum(-1)[:, None]) * scale
    errors = {
        "window": lost.expand(len(late), -1),
        "recompute": lost.expand(len(late), -1).masked_fill(own, 0),
        "delta": torch.cdist(delta, delta).square(),
        "mass": mixed(torch.sigmoid(parts.log_missed[:, None] + moved - parts.log_kept)),
        "mass, same share": mixed(torch.sigmoid(parts.log_missed - parts.log_kept)[:, None]),
    }
    return errors, full, delta


def strided_bias(scores: Tensor, lam: float) -> Tensor:
    """A bias of the keys for every row, from the column sums of every STRIDE-th row before it.

    The update of `causal_elastic`, where one row stands for all of its group.
    """
    n, found = len(scores), []
    wanted, received = scores.new_full((2, n), PRIOR)
    for g in range(0, n, STRIDE):
        bias = lam * (wanted / received).log()
        found.append(bias)
        seen, fair = slice(0, g + 1), STRIDE / (g + 1)
        given = STRIDE * ((scores[g, seen] + bias[seen]).log_softmax(-1) - bias[seen]).exp()
        received[seen] += given
        wanted[seen] += fair
        latest = given[-STRIDE:]
        received[g + 1 :] = PRIOR / min(1.0, (fair * len(latest) / latest.sum()).item())
    return torch.stack(found).repeat_interleave(STRIDE, 0)[:n]


def corrected_plans(q: Tensor, k: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """Plans with dense rows at every STRIDE-th place, all scores with a bias."""
    scale, rows = q.shape[-1] ** -0.5, torch.arange(len(q))
    full, sparse, missed, log_kept, log_missed = take_apart(q @ k.mT * scale + bias)
    g = rows // STRIDE * STRIDE
    moved = ((q - q[g]) * (missed @ k)[g]).sum(-1) * scale
    share = torch.sigmoid(log_missed[g] + moved - log_kept)[:, None]
    return {
        "full": full,
        "recompute": torch.where((rows == g)[:, None], full, sparse),
        "delta": sparse + (full - sparse)[g],
        "mass": sparse + share * (missed[g] - sparse),
    }


def placements(q: Tensor, k: Tensor, v: Tensor) -> tuple[dict[str, float], dict[str, int]]:
    """Relative errors of one head by method and place, and how many rows were dense."""
    errors, full, delta = group_errors(q, k, v)
    every = list(range(0, len(full), STRIDE))
    rows = {"": every, ", by query": by_query(q, FIRST), ", by delta": by_delta(delta)}
    found = {name: placed(one, every) for name, one in errors.items()}
    for method in ("recompute", "delta", "mass"):
        found |= {method + name: placed(errors[method], some) for name, some in rows.items()}
        found[f"{method}, hindsight"] = best_placed(errors[method], len(every))
    for correction in ("recompute", "delta", "mass"):  # that this is what the library computes
        result = bistoch.delta_attention(q, k, v, correction=correction, backend="reference")
        error = (result[FIRST:] - full).square().sum().item()
        assert math.isclose(error, found[correction], rel_tol=1e-6), correction
    norm = full.norm().item()
    relative = {name: math.sqrt(max(x, 0)) / norm for name, x in found.items()}
    return relative, {name or ", every 16th": len(some) for name, some in rows.items()}


def balances(q: Tensor, k: Tensor, v: Tensor, lam: float) -> dict[str, list[float]]:
    """By plan: column deviation, error against full causal elastic and against full softmax."""
    n, scores = len(q), q @ k.mT * q.shape[-1] ** -0.5
    fair = (1 / torch.arange(1, n + 1, dtype=q.dtype)).flip(0).cumsum(0).flip(0)
    plain = corrected_plans(q, k, torch.zeros(n, dtype=q.dtype))
    plans = {"full": plain["full"]}
    plans["causal_elastic"] = bistoch.causal_elastic_plan(q, k, lam=lam, block=STRIDE)
    biased = corrected_plans(q, k, strided_bias(scores, lam))
    plans |= plain | {f"{name} + bias": plan for name, plan in biased.items()}
    results = {name: plan[FIRST:] @ v for name, plan in plans.items()}
    goals = (results["causal_elastic"], results["full"])
    return {
        name: [(plan.sum(0) - fair).abs().sum().item() / n]
        + [((results[name] - goal).norm() / goal.norm()).item() for goal in goals]
        for name, plan in plans.items()
    }


def main() -> None:
    """Print means over heads, and write them with those of every layer if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--layers", type=int, nargs="*", default=[0, 6, 12, 18, 24, 29])
    parser.add_argument("--lams", type=float, nargs="*", default=[0.5, 0.9])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    subject = load_smollm()
    ids = subject.tokens(load("wikitext2").test[: 12 * options.length])[None, : options.length]
    subject.model.set_attn_implementation("sdpa")
    layers = record(lambda: subject.model.base_model(ids, use_cache=False), tuple(options.layers))
    heads, counts, balance = [], [], {lam: [] for lam in options.lams}
    for layer, tokens in zip(options.layers, layers, strict=True):
        for head, (q, k, v) in enumerate(zip(*(x[0].double() for x in tokens), strict=True)):
            errors, dense = placements(q, k, v)
            heads.append({"layer": layer, "head": head, "errors": errors})
            counts.append(dense)
            for lam in options.lams:
                balance[lam].append(balances(q, k, v, lam))
        print("layer", layer, flush=True)
    found = {"errors": mean_of([one["errors"] for one in heads]), "dense rows": mean_of(counts)}
    found["balance"] = {
        str(lam): {x: [sum(z) / len(z) for z in zip(*(y[x] for y in all_), strict=True)]
                   for x in all_[0]}
        for lam, all_ in balance.items()
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    if options.out:
        sizes = {"length": options.length, "layers": options.layers, "heads": heads}
        record_ = found | sizes | {"machine": describe_machine()}
        options.out.write_text(json.dumps(record_, indent=1) + "\n")


def mean_of(many: list[dict[str, float]]) -> dict[str, float]:
    """The mean of every entry."""
    return {name: sum(one[name] for one in many) / len(many) for name in many[0]}


if __name__ == "__main__":
    main()
