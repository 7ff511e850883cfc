"""Processes that train together train as one, resume each other's runs, and end together."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bistoch.lab.train import load_checkpoint, read_log
from bistoch.lab.train.loop import CHECKPOINT, METRICS

from . import together

# seconds that a test waits for its processes
PATIENCE = 270.0


def launch(count, *words, module=str(Path(together.__file__)), watch=None):
    """Run processes as torchrun does; their exit codes and texts. None is left behind."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    try:
        for rank in range(count):
            env = os.environ | {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            command = [sys.executable, *module.split(), *map(str, words)]
            processes.append(
                subprocess.Popen(
                    command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            )
        end = time.monotonic() + PATIENCE
        for process in processes[:-1] if watch == "all but the last" else processes:
            process.wait(timeout=max(end - time.monotonic(), 1))
    finally:
        for process in processes:
            process.kill()
        texts = [process.communicate(timeout=30) for process in processes]
    return [process.returncode for process in processes], texts


def errors_of(texts):
    """What processes wrote to stderr, for the message of a failed test."""
    return "\n".join(f"rank {rank}:\n{error}" for rank, (_, error) in enumerate(texts))


def tensors_in(folder):
    return load_checkpoint(folder / CHECKPOINT)[1]


def assert_near(folder, other, tolerance=1e-9):
    first, second = tensors_in(folder), tensors_in(other)
    assert first.keys() == second.keys()
    for name, x in first.items():
        torch.testing.assert_close(x, second[name], rtol=0, atol=tolerance, msg=name)


def check_equality(tmp_path, count):
    together.train(tmp_path / "one")
    together.train(tmp_path / "sgd", recipe=replace(together.RECIPE, optimizer="sgd"))
    with pytest.raises(together.StoppedError):
        together.train(tmp_path / "stopped", steps=6)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / CHECKPOINT).write_bytes(b"no checkpoint")
    codes, texts = launch(count, "equal,sgd,nan,refused", tmp_path)
    assert codes == [0] * count, errors_of(texts)
    for parallel in ("ddp", "fsdp"):
        for name in ("whole", "resumed"):
            assert_near(tmp_path / "one", tmp_path / f"{parallel}-{name}")
        state, _ = load_checkpoint(tmp_path / f"{parallel}-stopped" / CHECKPOINT)
        assert state.step == 6
        together.train(tmp_path / f"{parallel}-stopped")
        assert_near(tmp_path / "one", tmp_path / f"{parallel}-stopped")
        whole, found = (
            read_log(tmp_path / name / METRICS) for name in ("one", f"{parallel}-stopped")
        )
        assert [line["step"] for line in whole] == [line["step"] for line in found]
    assert_near(tmp_path / "sgd", tmp_path / "sgd-fsdp")
    for rank in range(count):
        said = {name: (tmp_path / f"{name}.{rank}").read_text() for name in ("nan", "damaged")}
        assert "train: the loss is nan at step" in said["nan"]
        assert "is damaged or no checkpoint of bistoch" in said["damaged"]
        differs = (tmp_path / f"differs.{rank}").read_text()
        assert "but lr is 0.001 in rank 0 and 0.002 in rank 1; start them by one" in differs
    assert {path.name for path in (tmp_path / "damaged").iterdir()} <= {CHECKPOINT, ".lock"}


def test_two_processes_train_as_one(tmp_path):
    check_equality(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_other_numbers_of_processes_train_as_one(tmp_path, count):
    if count > 1:
        check_equality(tmp_path, count)
        return
    # FSDP in one process is a plain run, bit by bit
    together.train(tmp_path / "one")
    with pytest.raises(together.StoppedError):
        together.train(tmp_path / "stopped", steps=6)
    codes, texts = launch(1, "equal", tmp_path)
    assert codes == [0], errors_of(texts)
    assert_near(tmp_path / "one", tmp_path / "fsdp-whole", tolerance=0)


@pytest.mark.slow
def test_every_model_trains_as_one(tmp_path):
    together.models(tmp_path / "one")
    codes, texts = launch(2, "all_models", tmp_path)
    assert codes == [0, 0], errors_of(texts)
    for parallel in ("ddp", "fsdp"):
        for number in range(len(together.MODELS)):
            name = str(number)
            assert_near(tmp_path / "one" / name, tmp_path / parallel / name, tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "hangs"])
def test_a_process_that_dies_ends_the_others(tmp_path, how):
    began = time.monotonic()
    codes, texts = launch(3, how, tmp_path, watch="all but the last")
    # the timeout of the group is 8 seconds; the rest is start
    assert time.monotonic() - began < PATIENCE / 3
    assert codes == [1, 1, -9]
    for rank in range(2):
        assert (
            f"another process ended, or did not answer in time, so rank {rank} ends too"
            in texts[rank][1]
        )
    # what is there is whole, and one process resumes it
    names = {path.name for path in (tmp_path / how).iterdir()}
    assert names <= {CHECKPOINT, METRICS, ".lock"}
    assert load_checkpoint(tmp_path / how / CHECKPOINT)[0].step == 6
    together.train(tmp_path / how)
    together.train(tmp_path / "one")
    assert_near(tmp_path / "one", tmp_path / how)


MODEL = "set_transformer(depth=1, dim=8, heads=2, inducing=3, dropout=0)"
WORDS = (
    "train", "--data", "shapes", "--model", MODEL, "--operator", "elastic(lam=0.5)",
    "--epochs", "1", "--batch-size", "250", "--no-tensorboard",
)  # fmt: skip


@pytest.mark.slow
def test_torchrun_starts_the_command(tmp_path):
    def scores(text):
        return [line for line in text.splitlines() if "all epochs done" in line]

    found = {}
    for name in ("one", "ddp", "fsdp"):
        together = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
        words = [*(together if name != "one" else []), "bistoch", *WORDS]
        more = ["--parallel", "fsdp"] if name == "fsdp" else []
        command = [sys.executable, "-m", *words, *more, "--out", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        # the main process alone prints
        (line,) = scores(done.stdout)
        found[name] = line.partition("; ")[2]
        assert_near(tmp_path / "one", tmp_path / name, tolerance=1e-4)
    assert len(set(found.values())) == 1


@pytest.mark.slow
def test_a_refusal_is_one_sentence_in_every_process(tmp_path):
    (tmp_path / CHECKPOINT).write_bytes(b"nothing")
    codes, texts = launch(2, *WORDS, "--out", tmp_path, module="-m bistoch")
    assert codes == [2, 2]
    for _, error in texts:
        (line,) = error.splitlines()
        assert "checkpoint.safetensors is damaged" in line
