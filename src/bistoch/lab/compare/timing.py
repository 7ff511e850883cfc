"""The time of a training step by operator: in one run, taking turns, the best of several."""

import time
from typing import Any

import torch
from torch import nn

from bistoch.lab.compare.plan import Comparison
from bistoch.lab.machine import OtherLoad
from bistoch.lab.train import Task, new_model
from bistoch.lab.train.loop import make_optimizer

ROUNDS, WARM_UP = 9, 2


def time_steps(comparison: Comparison, task: Task, device: torch.device) -> dict[str, Any]:
    """Seconds of a training step (forward, backward, update), the best of several rounds.

    Softmax is always among them, as what the others are compared with. `others` is the share of all
    cores that other programs used meanwhile; None where the system does not tell.
    """
    names = dict.fromkeys(("softmax", *comparison.operators))
    rows = torch.arange(min(comparison.recipe.batch_size, task.count("train")))
    batch = task.batch("train", rows).to(device)
    models = {}
    for name in names:
        model = new_model(comparison.setup(name, comparison.seeds[0]), task).to(device).train()
        models[name] = model, make_optimizer(model, comparison.recipe)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        task.losses(model(*batch.inputs), batch.target).mean().backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    neighbours = OtherLoad()
    best = dict.fromkeys(names, float("inf"))
    with torch.random.fork_rng(devices=()):
        for turn in range(WARM_UP + ROUNDS):
            for name, (model, optimizer) in models.items():
                seconds = step(model, optimizer)
                if turn >= WARM_UP:
                    best[name] = min(best[name], seconds)
    return {
        "seconds": best, "batch": len(rows), "threads": torch.get_num_threads(),
        "others": neighbours.share(),
    }  # fmt: skip
