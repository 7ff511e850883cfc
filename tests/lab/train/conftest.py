"""A task and a model of milliseconds, with every kind of random number that a model may draw."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from bistoch.lab.data import Dataset
from bistoch.lab.train import Classification


def make_task(hold_out=False, train=37, noise=0.3):
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, train + 20)
    x = np.zeros((train + 20, 5, 3), np.float32)
    x[:] = noise * generator.normal(size=x.shape)
    x[np.arange(len(y)), :, y] += 1
    data = Dataset("tiny", "points", x[:train], y[:train], x[train:], y[train:], ("a", "b", "c"))
    return Classification(data, hold_out=hold_out)


class Noisy(nn.Module):
    """Draws from torch, numpy and Python in every step."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Linear(15, 11), nn.GELU(), nn.Dropout(0.3))
            self.head = nn.Linear(11, 3)

    def forward(self, x):
        x = self.body(x.flatten(1))
        if self.training:
            x = x * (1 + 0.1 * np.random.rand()) + 0.1 * random.random()
        return self.head(x)


def weights(model):
    return {name: x.clone() for name, x in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(x, second[name]) for name, x in first.items()
    )


def weights_of(content):
    """The weights in a checkpoint, by the file format alone."""
    return {
        name.removeprefix("model."): x
        for name, x in safetensors.torch.load(content).items()
        if name.startswith("model.")
    }


@pytest.fixture
def small():
    return SimpleNamespace(
        make_task=make_task, Noisy=Noisy, weights=weights, same=same, weights_of=weights_of
    )
