"""The score of a model on a split."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from bistoch.lab.train.ranks import Ranks
from bistoch.lab.train.recipe import Precision
from bistoch.lab.train.task import Task

# samples that are evaluated at once
AT_ONCE = 256


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    split: str,
    precision: Precision = "fp32",
    *,
    ranks: Ranks | None = None,
) -> dict[str, float]:
    """Mean loss and mean score of a split, shared out over the processes.

    Args:
        model: left in the mode it was in.
        task: whose loss and score.
        split: "train", "valid" or "test".
        precision: as for training.
        ranks: the processes that evaluate together; by default this one alone.
    """
    ranks = ranks or Ranks(0, 1, next(model.parameters()).device)
    was_training = model.training
    model.eval()
    sums, count = [0.0, 0.0], task.count(split)
    for rows in ranks.share(torch.arange(count)).split(AT_ONCE):
        batch = task.batch(split, rows).to(ranks.device)
        with autocast(precision, ranks.device):
            output = model(*batch.inputs)
        sums[0] += task.losses(output, batch.target).double().sum().item()
        sums[1] += task.scores(output, batch.target).double().sum().item()
    model.train(was_training)
    loss, score = ranks.sum(sums)
    return {"loss": loss / max(count, 1), task.score_name: score / max(count, 1)}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in bfloat16, if the recipe says so."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
