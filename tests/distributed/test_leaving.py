"""A process group that was destroyed leaves no thread: one that ends at exit may abort."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# an optimizer and a model over processes, as users have them: both read parts of torch that are
# not yet there when the group is made, and the norm of sharded gradients fills caches of torch
PROGRAM = """
import glob, os
import torch
import torch.distributed as dist
{imports}

def train():
    layer = torch.nn.Linear(3, 3)
    {spread}
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(2, 3)).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    assert norm > 0
    optimizer.step()
    dist.all_reduce(torch.ones(3))

def threads():
    return [open(name).read().strip() for name in glob.glob("/proc/self/task/*/comm")]

{join}
    train()
    before = threads()
{leave}
counts = [sum("gloo" in name for name in names) for names in (before, threads())]
# in one piece, since two processes write
os.write(1, b"%d %d\\n" % tuple(counts))
"""
DDP = "layer = torch.nn.parallel.DistributedDataParallel(layer)"
# what is imported, how the group is joined, how the model is spread over it, how it is left
WAYS = {
    "group": (
        "import bistoch.distributed",
        'dist.init_process_group("gloo", init_method="env://")\nif True:',
        DDP,
        "dist.destroy_process_group()",
    ),
    "training": (
        "from bistoch.lab.train.ranks import joined_ranks",
        "with joined_ranks():",
        DDP,
        "",
    ),
    "sharded training": (
        "from bistoch.lab.train.ranks import joined_ranks",
        'with joined_ranks(parallel="fsdp") as ranks:',
        "ranks.shard(layer)",
        "",
    ),
}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are read from /proc")
@pytest.mark.parametrize("way", WAYS)
def test_no_thread_outlives_its_group(way):
    imports, join, spread, leave = WAYS[way]
    program = PROGRAM.format(imports=imports, join=join, spread=spread, leave=leave)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, "--no-python", sys.executable, "-c", program],
        env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counts = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert len(counts) == 2
    assert all(before > 0 and after == 0 for before, after in counts), counts
