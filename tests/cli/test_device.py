"""`--device` is an option of every command that computes, and a GPU that is not here is refused."""

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.lab.device import read_device

# commands that compute nothing with tensors
WITHOUT = {"list", "data list", "data get", "data path"}


def commands(group, before=()):
    for name, one in group.commands.items():
        words = (*before, name)
        yield from commands(one, words) if hasattr(one, "commands") else [(" ".join(words), one)]


ALL = dict(commands(typer.main.get_command(app)))
WITH = sorted(set(ALL) - WITHOUT)


def arguments(name, folder):
    """What a command cannot do without."""
    file = folder / "vectors.npy"
    np.save(file, np.random.default_rng(0).normal(size=(9, 4)).astype("float32"))
    needed = {"inspect": ["nowhere"], "retrieval": [str(file), str(file)]}
    needed |= {"eval": ["."], "generate": ["."], "predict": [".", str(file)]}
    # nothing is read or computed before the device is known, so other options may be left out
    return [*name.split(), *needed.get(name, ())]


@pytest.mark.parametrize("name", WITH)
def test_every_command_that_computes_has_the_option(name):
    assert "--device" in [word for option in ALL[name].params for word in option.opts]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", [x for x in WITH if x.split()[0] in (
    "show", "flow", "inspect", "retrieval", "demo", "explore", "eval", "predict", "generate",
)])  # fmt: skip
def test_a_device_that_is_not_here_is_refused_in_a_sentence(name, tmp_path):
    for device, said in (("cuda", "sees no cuda device"), ("meta", "but it is 'meta'")):
        result = CliRunner().invoke(app, [*arguments(name, tmp_path), "--device", device])
        assert result.exit_code == 2
        assert f"bistoch: {name}: device must be cpu" in result.stderr
        assert said in result.stderr


@pytest.mark.parametrize("name", ["show", "flow cluster", "flow points", "retrieval", "demo"])
def test_tensors_go_to_the_device(name, tmp_path, monkeypatch):
    """On the device meta nothing has a value: whoever computes there can read no number."""
    monkeypatch.setattr("bistoch.lab.device.read_device", lambda *_: torch.device("meta"))
    result = CliRunner().invoke(app, [
        *arguments(name, tmp_path), *([] if name == "show" else ["--out", str(tmp_path / "out")]),
    ])  # fmt: skip
    assert result.exit_code != 0
    assert "meta" in (result.stderr + repr(result.exception)).lower()


def test_the_cpu_changes_nothing(tmp_path):
    usual, asked = (
        CliRunner().invoke(app, ["show", "softmax", "sinkhorn", *more])
        for more in ((), ("--device", "cpu"))
    )
    assert asked.exit_code == 0
    assert asked.stdout == usual.stdout


@pytest.mark.parametrize(
    ("text", "chosen"), [("cpu:0", []), ("cuda", []), ("cuda:1", [torch.device("cuda:1")])]
)
def test_a_numbered_gpu_becomes_the_current_one(text, chosen, monkeypatch):
    """Clocks synchronise the current device only."""
    asked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    assert read_device(text, "bench") == torch.device(text)
    assert asked == chosen
