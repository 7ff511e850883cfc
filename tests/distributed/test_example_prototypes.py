"""The example of docs/distributed_training.md, started as its reader would."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_prototypes_over_processes():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "prototypes_distributed.py"), "--steps", "3"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert re.match(r"step 3: loss \d\.\d+, prototypes receive", lines[0])
    apart = re.match(r"codes over 2 processes are within (\S+) of those of one process", lines[1])
    assert float(apart[1]) < 1e-4
    assert lines[2].endswith("ours finite True, published steps finite False")
