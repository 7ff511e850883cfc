"""Models of timm itself; torchvision, which it imports for data only, may be missing."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("timm") is None,
    reason="timm is not installed; tests/foreign_layers.py has layers that make the same calls",
)
def test_models_of_timm_are_themselves_with_softmax(tmp_path):
    out = tmp_path / "convert.json"
    command = [sys.executable, "-W", "ignore", ROOT / "benchmarks" / "convert.py", "--small"]
    # an empty torchvision may stand in for it, which other tests should not meet
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [*command, "--out", out], check=True, timeout=240, env=os.environ | {"PYTHONPATH": path}
    )
    models = json.loads(out.read_text())["models"]
    timm = {name: row for name, row in models.items() if name.startswith("timm")}
    assert [row["layers"] for row in timm.values()] == [2, 4]
    for row in models.values():
        assert row["restored"]
        assert row["float64"] < 1e-13 * max(1, row["largest output"])
        assert row["float32"] < 1e-5 * max(1, row["largest output"])
