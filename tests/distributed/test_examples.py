"""The examples run as their first lines say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("keys", ["gather", pytest.param("ring", marks=pytest.mark.slow)])
def test_sequence_parallel(keys):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", ROOT / "examples" / "sequence_parallel.py", "--length", "61", "--keys", keys]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("step ") == 3
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith(f"2 ranks, {keys}: at most ")
    assert float(last.split("most ")[1].split()[0]) < 1e-5
