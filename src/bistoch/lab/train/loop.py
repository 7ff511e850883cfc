"""The training loop: plain torch, one process or several, and a run that can be killed anywhere."""

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bistoch.lab.files import held, write_whole
from bistoch.lab.train.checkpoint import (
    State,
    damaged,
    load_checkpoint,
    restore,
    save_checkpoint,
)
from bistoch.lab.train.diverged import diagnose
from bistoch.lab.train.log import Log
from bistoch.lab.train.order import borrowed_randomness, epoch_order, seed_all
from bistoch.lab.train.ranks import Ranks
from bistoch.lab.train.recipe import Recipe, rate_at
from bistoch.lab.train.score import autocast, evaluate
from bistoch.lab.train.task import Task, parameter_groups, watched_split

CHECKPOINT, METRICS, CONFIG = "checkpoint.safetensors", "metrics.jsonl", "config.json"
# seconds between two checkpoints within an epoch, and steps between two lines of the log
SAVE_EVERY, LOG_EVERY = 20.0, 50


class Moment(NamedTuple):
    """What a watcher of a run is told after every step."""

    step: int
    steps: int
    epoch: int
    loss: float
    curve: list[dict[str, float]]


@dataclass(frozen=True)
class Fitted:
    """What a run left: why it ended, its curve by epoch, the epoch of its weights, its seconds."""

    finished: str
    curve: list[dict[str, float]]
    epoch: int
    steps: int
    seconds: float


def fit(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    *,
    folder: Path,
    seed: int = 0,
    config: dict[str, Any] | None = None,
    ranks: Ranks | None = None,
    tensorboard: bool = False,
    watch: Callable[[Moment], None] | None = None,
    save_every: float = SAVE_EVERY,
) -> Fitted:
    """Train a model, or go on where it was killed: the rest is the same, bit by bit.

    Args:
        model: trained in place; at the end it has the last weights, or with patience the best.
        task: what it learns.
        recipe: how.
        folder: for the checkpoint and the log. A run that is finished there is only read.
        seed: of the order of the samples and of what layers draw, such as dropout. The weights to
            start from are those of the model.
        config: what to write into config.json, beside the first checkpoint.
        ranks: the processes that train together; by default this one alone.
        tensorboard: whether to write files for TensorBoard.
        watch: called after every step, in the first process.
        save_every: seconds between two checkpoints; one is written after every epoch anyway.
    """
    ranks = ranks or Ranks(0, 1, torch.device("cpu"))
    run = _Run(model.to(ranks.device), task, recipe, folder, seed, ranks, config)
    with borrowed_randomness(), held(folder) if ranks.leads else nullcontext():
        run.resume()
        if ranks.leads and not run.state.finished:
            with Log(folder / METRICS, run.state.step, tensorboard=tensorboard) as log:
                run.train(log, watch, save_every)
        else:
            run.train(None, None, save_every)
    state = run.state
    if run.best:
        model.load_state_dict(run.best)
    model.eval()
    epoch = state.best_epoch if run.best else len(state.curve)
    return Fitted(state.finished, state.curve, epoch, state.step, state.seconds)


class _Run:
    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        folder: Path,
        seed: int,
        ranks: Ranks,
        config: dict[str, Any] | None,
    ):
        self.model, self.task, self.recipe, self.seed, self.ranks = model, task, recipe, seed, ranks
        self.path, self.config = folder / CHECKPOINT, config
        self.optimizer = make_optimizer(model, recipe)
        self.state, self.best = State(), dict[str, Tensor]()
        self.batches = batch_sizes(task.count("train"), recipe.batch, ranks.count)
        self.steps = recipe.epochs * len(self.batches)
        self.norm: float | None = None
        self.epoch, self.order = -1, torch.zeros(0, dtype=torch.long)

    def resume(self) -> None:
        """Go back to the last checkpoint, if there is one."""
        if self.path.exists():
            self.state, tensors = load_checkpoint(self.path)
            epochs = self.state.step // len(self.batches)
            names = {"train_loss", "loss", self.task.score_name}
            if (
                self.state.step > self.steps
                or epochs != len(self.state.curve)
                or any(row.keys() != names for row in self.state.curve)
            ):
                raise damaged(
                    self.path,
                    f"{self.state.step} steps and {len(self.state.curve)} finished epochs do not "
                    f"fit a run of {self.recipe.epochs} epochs of {len(self.batches)} steps",
                )
            self.best = restore(self.path, tensors, self.model, self.optimizer)

    def train(
        self, log: Log | None, watch: Callable[[Moment], None] | None, save_every: float
    ) -> None:
        """Do what is left to do."""
        wrapped, state = self.ranks.wrap(self.model), self.state
        began = saved = time.monotonic()
        before = state.seconds
        while not state.finished:
            loss, rate = self.step(wrapped)
            ended = state.step % len(self.batches) == 0
            if log is not None and (state.step % LOG_EVERY == 0 or ended):
                log.write(state.step, {"train/loss": loss, "train/rate": rate})
            if ended:
                row = self.end_epoch()
                if log is not None:
                    log.write(state.step, {f"epoch/{name}": x for name, x in row.items()})
            now = time.monotonic()
            state.seconds = before + now - began
            if self.ranks.leads and (ended or state.finished or now - saved >= save_every):
                self.save()
                saved = now
            if watch is not None:
                watch(Moment(state.step, self.steps, len(state.curve), loss, state.curve))

    def save(self) -> None:
        """Write a checkpoint, before the first one what it belongs to: no run, no config."""
        if self.config is not None and not self.path.exists():
            content = json.dumps(self.config, indent=1, ensure_ascii=False)
            write_whole(self.path.with_name(CONFIG), content.encode())
        save_checkpoint(self.path, self.state, self.model, self.optimizer, self.best)

    def step(self, wrapped: nn.Module) -> tuple[float, float]:
        """One step of the optimizer; the loss of the whole batch, and the learning rate."""
        state, task = self.state, self.task
        epoch, place = divmod(state.step, len(self.batches))
        start = place * self.recipe.batch
        rows = self.epoch_order(epoch)[start : start + self.batches[place]]
        own = self.ranks.share(rows)
        seed_all("step", self.seed, state.step, self.ranks.rank)
        rate = rate_at(self.recipe, state.step, len(self.batches))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        wrapped.train()
        self.optimizer.zero_grad(set_to_none=True)
        batch = task.batch("train", own).to(self.ranks.device)
        with autocast(self.recipe.precision, self.ranks.device):
            output = wrapped(*batch.inputs)
        total = task.losses(output, batch.target).sum()
        # processes may hold different numbers of rows: this makes their average the batch's mean
        (total * (self.ranks.count / len(rows))).backward()
        loss_sum = self.ranks.sum([total.item()])[0]
        loss = loss_sum / len(rows)
        limit = self.recipe.clip or math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise diagnose(
                self.model, loss, step=state.step + 1, epoch=epoch + 1, rate=rate,
                norm=norm if math.isfinite(loss) else None, before=self.norm,
            )  # fmt: skip
        self.norm = norm
        self.optimizer.step()
        state.step += 1
        state.total += loss_sum
        state.count += len(rows)
        return loss, rate

    def epoch_order(self, epoch: int) -> Tensor:
        """The order of an epoch, made once."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.order = epoch_order(self.seed, epoch, self.task.count("train"))
        return self.order

    def end_epoch(self) -> dict[str, float]:
        """Evaluate, remember the best, and decide whether to go on."""
        state, recipe, split = self.state, self.recipe, watched_split(self.task)
        found = evaluate(self.model, self.task, split, recipe.precision, ranks=self.ranks)
        if not math.isfinite(found["loss"]):
            # the last step of an epoch is followed by no other that would notice
            raise diagnose(
                self.model, found["loss"], step=state.step, epoch=len(state.curve) + 1,
                rate=rate_at(recipe, state.step - 1, len(self.batches)), norm=None, split=split,
            )  # fmt: skip
        row = {"train_loss": state.total / state.count, **found}
        state.curve.append(row)
        state.total, state.count = 0.0, 0
        if recipe.patience is not None:
            score = row[self.task.score_name] * (1 if self.task.larger_is_better else -1)
            if state.best is None or score > state.best:
                state.best, state.best_epoch = score, len(state.curve)
                self.best = {n: x.detach().clone() for n, x in self.model.state_dict().items()}
            elif len(state.curve) - state.best_epoch >= recipe.patience:
                state.finished = "no better for so many epochs as patience says"
        if state.step == self.steps:
            state.finished = "all epochs are done"
        return row


def batch_sizes(count: int, batch: int, processes: int) -> list[int]:
    """The sizes of the batches of an epoch; one that not all processes share is left out.

    >>> batch_sizes(10, 4, 1), batch_sizes(9, 4, 2)
    ([4, 4, 2], [4, 4])
    """
    sizes = [min(batch, count - start) for start in range(0, count, batch)]
    sizes = [size for size in sizes if size >= processes]
    if not sizes:
        raise ValueError(
            f"train: {count} samples in batches of {batch} give nothing to do for {processes} "
            "processes; give more data, larger batches or fewer processes"
        )
    return sizes


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The optimizer of a recipe; its learning rate is set at every step."""
    groups = parameter_groups(model, recipe.weight_decay)
    # fused: one pass over all parameters instead of a dozen small operations for each of them
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.rate, momentum=0.9, fused=True)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.rate, fused=True)
