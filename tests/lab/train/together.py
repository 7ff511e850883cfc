"""What the processes of test_ranks.py run: `together.py WHAT,WHAT FOLDER`."""

import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from bistoch.lab.train import Recipe, TensorTask, fit, joined_ranks
from bistoch.models import build_model
from bistoch.nn import Attention

# 4 steps per epoch, the last with one row
RECIPE = Recipe(epochs=2, batch_size=12, lr=1e-2, patience=2)
ENDLESS = 10**6


class StoppedError(Exception):
    pass


class Stopped(TensorTask):
    """A task that stops its process after some steps, by an error or a signal."""

    steps, signal = ENDLESS, 0

    def batch(self, split, rows):
        self.steps -= split == "train"
        if self.steps < 0:
            if self.signal:
                os.kill(os.getpid(), self.signal)
            raise StoppedError
        return super().batch(split, rows)


class Tiny(nn.Module):
    """Layers whose parameters do not divide by 2 or 3, a buffer that changes, elastic attention."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            # inside (0, 1): at an end, a gradient that leads outside counts nothing, in every share
            operator = "elastic(lam=0.5, learn='head', iters=3, backend='reference')"
            self.layers = nn.ModuleList(Attention(3, 1, operator) for _ in range(2))
            self.head = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += self.training
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.mean(-2))


def losses(output, target):
    return nn.functional.cross_entropy(output, target, reduction="none")


def make_task(steps=ENDLESS):
    """Points in float64, so that differences are no rounding."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (60,), generator=generator)
    x = torch.randn(60, 5, 3, generator=generator, dtype=torch.double)
    x[torch.arange(60), :, y] += 1
    splits = {"train": (x[:37], y[:37]), "valid": (x[37:50], y[37:50]), "test": (x[50:], y[50:])}
    task = Stopped("tiny", splits, losses=losses)
    task.steps = steps
    return task


def train(folder, *, ranks=None, steps=ENDLESS, recipe=RECIPE, seed=0):
    """A run, or its rest; it stops by an error after some steps."""
    # a checkpoint after every step is needed only where a run stops
    every = 100.0 if steps == ENDLESS else 0.0
    model = Tiny(seed).double()
    return fit(model, make_task(steps), recipe, folder=folder, ranks=ranks, save_every=every)


def equal(folder):
    """Train from the start, resume what one process began, and stop a run for one process."""
    for parallel in ("ddp", "fsdp"):
        with joined_ranks(parallel=parallel) as ranks:
            # the weights of the main process are those of all
            train(folder / f"{parallel}-whole", ranks=ranks, seed=ranks.rank)
            # nobody but the main process needs to see the checkpoint
            if ranks.is_main:
                shutil.copytree(folder / "stopped", folder / f"{parallel}-resumed")
            train(folder / f"{parallel}-resumed", ranks=ranks, seed=5)
            try:
                train(folder / f"{parallel}-stopped", ranks=ranks, steps=6)
            except StoppedError:
                continue
            raise ValueError("the run was not stopped")


def sgd(folder):
    """Momentum is not fused for shards."""
    with joined_ranks(parallel="fsdp") as ranks:
        train(folder / "sgd-fsdp", ranks=ranks, recipe=replace(RECIPE, optimizer="sgd"))


def nan(folder):
    """A loss that is no number ends all processes with the same diagnosis."""
    recipe = replace(RECIPE, lr=1e300, optimizer="sgd", clip=None, schedule="constant", warmup=0.0)
    with joined_ranks(parallel="fsdp") as ranks:
        try:
            train(folder / "nan", ranks=ranks, recipe=recipe)
        except ValueError as error:
            (folder / f"nan.{ranks.rank}").write_text(str(error))


def refused(folder):
    """What differs between processes, or is refused in the main one, is said in all of them."""
    with joined_ranks() as ranks:
        other = replace(RECIPE, lr=(ranks.rank + 1) * 1e-3)
        for name, recipe in (("differs", other), ("damaged", RECIPE)):
            try:
                train(folder / "damaged", ranks=ranks, recipe=recipe)
            except ValueError as error:
                (folder / f"{name}.{ranks.rank}").write_text(str(error))


def dies(folder, how):
    """The last process dies, or hangs, in the middle of an epoch."""
    with joined_ranks(timeout=8.0, parallel="fsdp" if how == "hangs" else "ddp") as ranks:
        task = make_task(6 if ranks.rank == ranks.world_size - 1 else ENDLESS)
        task.signal = signal.SIGSTOP if how == "hangs" else signal.SIGKILL
        fit(Tiny().double(), task, RECIPE, folder=folder / how, ranks=ranks, save_every=0.0)


def random_samples(kind, *shape):
    generator = torch.Generator().manual_seed(1)
    if kind == "ids":
        return torch.randint(1, 7, shape, generator=generator)
    return torch.randn(shape, generator=generator)


# text of a model, its sizes, and the samples it takes
MODELS = {
    "vit(depth=1, dim=6, heads=2, patch=(2, 2))": (
        {"image": (4, 4), "channels": 1, "classes": 3}, ("numbers", 7, 4, 4)),
    "set_transformer(depth=1, dim=6, heads=2, inducing=3, dropout=0)": (
        {"coordinates": 3, "classes": 3}, ("numbers", 7, 5, 3)),
    "point_transformer(depth=1, dim=6, heads=2, summary=6, dropout=0)": (
        {"coordinates": 3, "classes": 3}, ("numbers", 7, 5, 3)),
    "text(depth=1, dim=6, heads=2, dropout=0)": (
        {"vocabulary": 7, "classes": 3}, ("ids", 7, 5)),
    "lm(depth=1, dim=8, heads=2, dropout=0)": ({"vocabulary": 7}, ("ids", 7, 5)),
    "forecast(depth=1, dim=6, heads=2, lookback=4, horizon=4, extend=2, dropout=0)": (
        {"channels": 3}, ("numbers", 7, 4, 3)),
}  # fmt: skip


def squares(output, target):
    return output.float().square().flatten(1).mean(-1) * (1 + target)


def models(folder, ranks=None):
    """Every model of the package, one step by SGD; the weights are the test."""
    recipe = Recipe(epochs=1, batch_size=7, optimizer="sgd", lr=0.1, clip=None, warmup=0.0)
    for number, (text, (sizes, samples)) in enumerate(MODELS.items()):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            operator = "causal_elastic" if text.startswith("lm") else "elastic(lam=0.5, iters=3)"
            model = build_model(text, operator, **sizes)
        split = random_samples(*samples), torch.arange(7)
        task = TensorTask("random", {"train": split, "test": split}, losses=squares, scores=squares)
        fit(model, task, recipe, folder=folder / str(number), ranks=ranks)


def all_models(folder):
    for parallel in ("ddp", "fsdp"):
        with joined_ranks(parallel=parallel) as ranks:
            models(folder / parallel, ranks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, where = sys.argv[1], Path(sys.argv[2])
    if what in ("killed", "hangs"):
        dies(where, what)
    else:
        # a group is joined once in the life of a process
        with joined_ranks(timeout=60.0):
            for part in what.split(","):
                globals()[part](where)
