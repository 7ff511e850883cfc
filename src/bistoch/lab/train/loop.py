"""The training loop: plain torch, one process or several; a killed run resumes bit by bit."""

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bistoch.lab.files import held, write_whole
from bistoch.lab.timing import best_times
from bistoch.lab.train.checkpoint import (
    State,
    damaged,
    load_checkpoint,
    restore,
    save_checkpoint,
    tensors_of,
)
from bistoch.lab.train.log import Log, read_log
from bistoch.lab.train.nan_loss import diagnose
from bistoch.lab.train.ranks import Ranks, whole
from bistoch.lab.train.recipe import Precision, Recipe, lr_at
from bistoch.lab.train.seeds import epoch_order, preserved_random_state, seed_all
from bistoch.lab.train.task import Task, validation_split

CHECKPOINT, METRICS, CONFIG = "checkpoint.safetensors", "metrics.jsonl", "config.json"
# seconds between two checkpoints within an epoch, and steps between two lines of the log
SAVE_EVERY, LOG_EVERY = 20.0, 50
# samples that are evaluated at once
EVALUATION_BATCH = 256
# how names of what was observed begin in the log
OBSERVED = "observed/"
Observe = Callable[[nn.Module], Mapping[str, float]]


class StepInfo(NamedTuple):
    """The state of a run after a step; `curve` has one row of metrics per finished epoch."""

    step: int
    steps: int
    epoch: int
    loss: float
    curve: list[dict[str, float]]


@dataclass(frozen=True)
class Fitted:
    """Why a run ended, its metrics by epoch, the epoch of its weights, its steps and seconds.

    `observed` is what `observe` found before the first step and after every epoch.
    """

    finished: str
    curve: list[dict[str, float]]
    epoch: int
    steps: int
    seconds: float
    observed: list[dict[str, float]] = field(default_factory=list)


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
    on_step: Callable[[StepInfo], None] | None = None,
    observe: Observe | None = None,
    save_every: float = SAVE_EVERY,
) -> Fitted:
    """Train a model, or resume where it was killed: the rest is the same, bit by bit.

    Args:
        model: trained in place; it ends with the last weights, or with `patience` the best ones.
            With FSDP its parameters are sharded in place, and stay so.
        task, recipe: what it learns, and how.
        folder: of the checkpoint and the log. A finished run is only read.
        seed: of the order of the samples and of dropout, not of the initial weights.
        config: written as config.json beside the first checkpoint.
        ranks: the processes that train together; by default this one alone.
        tensorboard: whether to write files for TensorBoard.
        on_step: called after every step, in the main process.
        observe: numbers of the model by name, asked for before the first step and after every epoch
            and kept in the log; for a single process.
        save_every: seconds between two checkpoints within an epoch.
    """
    ranks = ranks or Ranks(0, 1, torch.device("cpu"))
    if observe is not None and ranks.world_size > 1:
        raise ValueError(
            f"train: observe looks at the model in one process, but there are {ranks.world_size}; "
            "leave it out, or train in one process"
        )
    sizes = {f"the shape of {name}": tuple(p.shape) for name, p in model.named_parameters()}
    samples = {f"samples of {split}": task.count(split) for split in ("train", "valid", "test")}
    ranks.check_same({"seed": seed, **asdict(recipe), **samples, **sizes})
    ranks.shard(model.to(ranks.device))
    run = _Run(model, task, recipe, folder, seed, ranks, config)
    with preserved_random_state(), ExitStack() as stack:
        # what the main process is refused ends the others too
        ranks.from_main(lambda: stack.enter_context(held(folder)))
        run.resume()
        if ranks.is_main and not run.state.finished:
            with Log(folder / METRICS, run.state.step, tensorboard=tensorboard) as log:
                run.train(log, on_step, save_every, observe)
        else:
            run.train(None, None, save_every)
    state = run.state
    if run.best:
        model.load_state_dict(run.best)
    model.eval()
    epoch = state.best_epoch if run.best else len(state.curve)
    seen = read_observed(folder) if ranks.is_main else []
    return Fitted(state.finished, state.curve, epoch, state.step, state.seconds, seen)


def read_observed(folder: Path) -> list[dict[str, float]]:
    """What `observe` found in a run, from its log: before the first step, and after every epoch."""
    found: dict[int, dict[str, float]] = {}
    for line in read_log(folder / METRICS):
        numbers = {name: x for name, x in line.items() if name.startswith(OBSERVED)}
        if numbers:
            # a run that was killed before its first checkpoint begins again
            found[line["step"]] = {name.removeprefix(OBSERVED): x for name, x in numbers.items()}
    return list(found.values())


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
        self.batches = batch_sizes(task.count("train"), recipe.batch_size)
        self.steps = recipe.epochs * len(self.batches)
        self.norm: float | None = None
        self.epoch, self.order = -1, torch.zeros(0, dtype=torch.long)

    def resume(self) -> None:
        """Load the last checkpoint, if there is one, which only the main process must see."""
        path = self.path
        found = self.ranks.from_main(lambda: load_checkpoint(path) if path.exists() else None)
        if found is None:
            return
        state, tensors = found
        metrics = {"train_loss", "loss", self.task.score_name}
        if (
            state.step > self.steps
            or state.step // len(self.batches) != len(state.curve)
            or any(row.keys() != metrics for row in state.curve)
        ):
            raise damaged(
                self.path,
                f"{state.step} steps and {len(state.curve)} finished epochs do not fit a run of "
                f"{self.recipe.epochs} epochs of {len(self.batches)} steps",
            )
        self.state, self.best = state, restore(self.path, tensors, self.model, self.optimizer)

    def save(self) -> None:
        """Write a checkpoint, and before the first one config.json: a refused start has none.

        All processes take part, since each may hold a shard; the main one writes.
        """
        tensors = tensors_of(self.model, self.optimizer, self.best, kept=self.ranks.is_main)
        if not self.ranks.is_main:
            return
        if self.config is not None and not self.path.exists():
            content = json.dumps(self.config, indent=1, ensure_ascii=False)
            write_whole(self.path.with_name(CONFIG), content.encode())
        save_checkpoint(self.path, self.state, tensors)

    def train(
        self,
        log: Log | None,
        on_step: Callable[[StepInfo], None] | None,
        save_every: float,
        observe: Observe | None = None,
    ) -> None:
        """Do the remaining steps."""
        wrapped, state = self.ranks.wrap(self.model), self.state
        if state.step == 0:
            self.observe(log, observe)
        began = saved = time.monotonic()
        before = state.seconds
        while not state.finished:
            loss, lr = self.step(wrapped)
            epoch_ended = state.step % len(self.batches) == 0
            if log is not None and (state.step % LOG_EVERY == 0 or epoch_ended):
                log.write(state.step, {"train/loss": loss, "train/lr": lr})
            if epoch_ended:
                row = self.end_epoch()
                if log is not None:
                    log.write(state.step, {f"epoch/{name}": x for name, x in row.items()})
                self.observe(log, observe)
            now = time.monotonic()
            state.seconds = before + now - began
            # the clock of the main process decides
            is_due = self.ranks.is_main and now - saved >= save_every
            if epoch_ended or self.ranks.sum([float(is_due)])[0]:
                self.save()
                saved = now
            if on_step is not None:
                on_step(StepInfo(state.step, self.steps, len(state.curve), loss, state.curve))

    def observe(self, log: Log | None, observe: Observe | None) -> None:
        """Ask for numbers of the model as it is, and keep them in the log."""
        if log is not None and observe is not None:
            found = observe(self.model)
            log.write(self.state.step, {f"{OBSERVED}{name}": x for name, x in found.items()})

    def step(self, wrapped: nn.Module) -> tuple[float, float]:
        """One step of the optimizer; the loss of the whole batch, and the learning rate."""
        state, task, ranks = self.state, self.task, self.ranks
        epoch, number = divmod(state.step, len(self.batches))
        if epoch != self.epoch:
            self.epoch = epoch
            self.order = epoch_order(self.seed, epoch, task.count("train"))
        start = number * self.recipe.batch_size
        rows = self.order[start : start + self.batches[number]]
        seed_all("step", self.seed, state.step, ranks.rank)
        lr = lr_at(self.recipe, state.step, len(self.batches))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        wrapped.train()
        self.optimizer.zero_grad(set_to_none=True)
        if ranks.is_sharded:
            # as DistributedDataParallel does
            ranks.synchronize(list(self.model.buffers()))
        own, weight = ranks.share(rows)
        batch = task.batch("train", own).to(ranks.device)
        with autocast(self.recipe.precision, ranks.device):
            output = wrapped(*batch.inputs)
        total = task.losses(output, batch.target).sum() * weight
        # processes may hold different numbers of rows: this makes their average the batch's mean
        (total * (ranks.world_size / len(rows))).backward()
        loss_sum = ranks.sum([total.item()])[0]
        loss = loss_sum / len(rows)
        limit = self.recipe.clip or math.inf
        norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), limit)).item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            is_loss = not math.isfinite(loss)
            what = f"the loss is {loss:g}" if is_loss else f"the gradient norm is {norm:g}"
            where = {"step": state.step + 1, "epoch": epoch + 1}
            raise diagnose(self.model, what, **where, lr=lr, norm=self.norm)
        self.norm = norm
        self.optimizer.step()
        state.step += 1
        state.total += loss_sum
        state.count += len(rows)
        return loss, lr

    def end_epoch(self) -> dict[str, float]:
        """Evaluate, keep the best weights, and decide whether the run is finished."""
        state, recipe, split = self.state, self.recipe, validation_split(self.task)
        found = evaluate(self.model, self.task, split, recipe.precision, ranks=self.ranks)
        if not math.isfinite(found["loss"]):
            # after the last step of a run no other step would notice
            raise diagnose(
                self.model, f"the loss on {split} is {found['loss']:g}", step=state.step,
                epoch=len(state.curve) + 1, lr=lr_at(recipe, state.step - 1, len(self.batches)),
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
                state.finished = "early stopping"
        if state.step == self.steps:
            state.finished = "all epochs done"
        return row


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    split: str,
    precision: Precision = "fp32",
    *,
    ranks: Ranks | None = None,
) -> dict[str, float]:
    """The mean loss and the mean score of a split, computed by all processes together."""
    ranks = ranks or Ranks(0, 1, next(model.parameters()).device)
    was_training = model.training
    model.eval()
    sums, count = [0.0, 0.0], task.count(split)
    for rows in torch.arange(count).split(EVALUATION_BATCH * ranks.world_size):
        own, weight = ranks.share(rows)
        batch = task.batch(split, own).to(ranks.device)
        with autocast(precision, ranks.device):
            output = model(*batch.inputs)
        sums[0] += weight * task.losses(output, batch.target).double().sum().item()
        sums[1] += weight * task.scores(output, batch.target).double().sum().item()
    model.train(was_training)
    loss, score = ranks.sum(sums)
    return {"loss": loss / max(count, 1), task.score_name: score / max(count, 1)}


def time_steps(
    models: Mapping[str, nn.Module], task: Task, recipe: Recipe, *, rounds: int = 9, warmup: int = 2
) -> dict[str, Any]:
    """The best time of a training step (forward, backward, update) of models that take turns.

    The models, by name, are on one device; the batch is the first samples of train.
    """
    rows = torch.arange(min(recipe.batch_size, task.count("train")))
    device = next(next(iter(models.values())).parameters()).device
    batch = task.batch("train", rows).to(device)

    def stepper(model: nn.Module) -> Callable[[], None]:
        optimizer = make_optimizer(model.train(), recipe)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            task.losses(model(*batch.inputs), batch.target).mean().backward()
            optimizer.step()

        return step

    calls = {name: stepper(model) for name, model in models.items()}
    return {**best_times(calls, rounds, warmup=warmup), "batch_size": len(rows)}


def batch_sizes(count: int, batch_size: int) -> list[int]:
    """The batch sizes of an epoch.

    >>> batch_sizes(10, 4)
    [4, 4, 2]
    """
    if not count:
        raise ValueError("train: there must be samples to train on, but there are none")
    return [min(batch_size, count - start) for start in range(0, count, batch_size)]


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The optimizer of a recipe; weight decay is for matrices only."""
    learned = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learned if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in learned if p.ndim < 2], "weight_decay": 0.0},
    ]
    if recipe.optimizer == "sgd":
        # torch has no fused SGD for shards
        fused = not any(hasattr(p, "full_tensor") for p in learned)
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=0.9, fused=fused)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.lr, fused=True)


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Autocast to bfloat16, if the recipe says so."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
