"""`bench --tune`: a small space of blocks, timed once, and kept in a file."""

import json
from io import StringIO

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from bistoch.cli import app
from bistoch.functional.elastic.triton.blocks import SPACE
from bistoch.functional.kernels.tuning import chosen_blocks, use_blocks, write_blocks
from bistoch.lab.gpu import causal, cost, table
from bistoch.lab.gpu.tune import ALL_SPACE, run_tuning

triton = pytest.importorskip("triton")


def test_tuning_times_the_space_once(tmp_path):
    """With a clock that likes large blocks; a second run reads the file of the first."""
    said, asked = StringIO(), []

    def clock(call):
        sizes = {family: chosen_blocks(family) for family in ALL_SPACE}
        asked.append(sizes)
        return 1 / sum(x[0] * x[1] for x in sizes.values() if x)

    arguments = tmp_path, Console(file=said, soft_wrap=True), torch.device("cpu"), 64
    found = run_tuning(*arguments, clock=clock)
    assert len(asked) == sum(len(candidates) for candidates in ALL_SPACE.values())
    assert found == {name: max(x, key=lambda s: s[0] * s[1]) for name, x in ALL_SPACE.items()}
    # those of the table for steps and output are as large
    others = {name: x for name, x in found.items() if name not in ("steps", "output")}
    assert f"export BISTOCH_TRITON_BLOCKS={write_blocks(others)}" in said.getvalue()
    assert run_tuning(*arguments, clock=clock) == found
    assert len(asked) == sum(len(candidates) for candidates in ALL_SPACE.values())
    # a file of an earlier version, with fewer families and a choice that is none any more
    path = tmp_path / "blocks.json"
    ((key, known),) = json.loads(path.read_text()).items()
    del known["causal_keys"]
    known["output"] = [1024, 16, 8, 1]
    path.write_text(json.dumps({key: known, "another GPU": {"steps": [64, 64, 4, 2]}}))
    asked.clear()
    assert run_tuning(*arguments, clock=clock) == found
    assert len(asked) == len(ALL_SPACE["causal_keys"]) + len(ALL_SPACE["output"])
    assert json.loads(path.read_text())["another GPU"] == {"steps": [64, 64, 4, 2]}
    with pytest.raises(ValueError, match="up to 64 features, but --dim is 128"):
        run_tuning(*arguments[:3], 128, clock=clock)


def test_tuning_names_no_blocks_that_are_those_of_the_tables(tmp_path):
    """They would take the place of tiles that the tables have for some masks."""

    def clock(call):
        return 1.0 if chosen_blocks("output") != (128, 32, 8, 1) else quick

    for quick, words in ((0.5, "BISTOCH_TRITON_BLOCKS=output=128x32x8x1\n"), (2.0, "without BIST")):
        said, out = StringIO(), tmp_path / str(quick)
        out.mkdir()
        console = Console(file=said, soft_wrap=True)
        run_tuning(out, console, torch.device("cpu"), 64, clock=clock)
        assert words in said.getvalue()


def test_tuning_leaves_out_blocks_that_a_device_refuses(tmp_path):
    def clock(call):
        if chosen_blocks("vectors") == (128, 64, 8, 1) or chosen_blocks("causal_keys"):
            raise triton.runtime.errors.OutOfResources(300000, 166912, "shared memory")
        return 1 / chosen_blocks("steps")[0]

    said = StringIO()
    arguments = Console(file=said, soft_wrap=True), torch.device("cpu"), 64
    found = run_tuning(tmp_path, *arguments, clock=clock)
    assert found["steps"] == (128, 32, 8, 2)
    assert (found["vectors"], found["causal_keys"]) == ((64, 64, 4, 2), ALL_SPACE["causal_keys"][0])
    assert "vectors: not 128x64x8x1 on this device: out of resource" in said.getvalue()
    (tmp_path / "blocks.json").write_text('{"half')
    with pytest.raises(ValueError, match=r"blocks\.json must hold what --tune wrote.*remove it"):
        run_tuning(tmp_path, *arguments, clock=clock)


@pytest.mark.parametrize("gpu", cost.GPUS.values(), ids=cost.GPUS)
def test_tuning_tries_what_the_model_of_cost_cannot_tell_apart(gpu):
    """Programs that own half as many tokens wait for the cache; more than these spill."""
    owned = {sizes[0] for candidates in SPACE.values() for sizes in candidates}
    assert owned == {64, 128}
    assert cost.pass_seconds(gpu, 64, 64) == cost.pass_seconds(gpu, 128, 64)
    assert cost.pass_seconds(gpu, 32, 64) > 1.15 * cost.pass_seconds(gpu, 64, 64)


def test_tuning_begins_with_the_blocks_of_the_tables():
    """Chosen by name they are the same kernels, with the same registers."""
    names = ("BLOCK_X", "BLOCK_Y", "num_warps", "num_stages", "maxnreg")

    def kernels():
        found = table.long_launches(torch.bfloat16, 64, "no mask")
        found += causal.launches(torch.bfloat16, 64, "sm_90", "no mask")
        return {(x.kernel.__name__, *map(x.arguments.get, names)) for x in found}

    of_tables = kernels()
    with use_blocks({family: candidates[0] for family, candidates in ALL_SPACE.items()}):
        assert kernels() == of_tables
    with use_blocks({family: candidates[1] for family, candidates in ALL_SPACE.items()}):
        # one for each of output, queries and keys, and two where rows and columns have their own
        assert len(of_tables - kernels()) >= 7


def test_tuning_needs_a_gpu(tmp_path):
    result = CliRunner().invoke(app, ["bench", "--tune", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "--tune times the Triton kernels, which needs a GPU and Triton" in result.stderr
