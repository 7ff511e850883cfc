"""Print the table of docs/distributed_training.md.

$ PYTHONPATH=tests python -m distributed.uses_table
"""

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch

from distributed import uses_cases as cases
from distributed.pool import Pool
from lab.train import test_ranks, together

WORLDS = (1, 2, 3, 4)
RESULTS = {"codes", "states", "queries", "documents"}
GRADIENTS = {"tokens", "weights", "d scores", "d lam", "d eps", "d column_mass"}
CODES = ("plain", "elastic", "temperature", "shares", "padding")


def largest(found, kinds):
    """The largest difference over ranks and cases, of some kinds."""
    return max(
        apart
        for table in found
        for differences in table.values()
        for kind, apart in differences.items()
        if kind in kinds
    )


def training(count, folder):
    """The largest difference of weights from one process after all steps, by DDP and by FSDP."""
    codes, texts = test_ranks.launch(count, "equal", folder)
    if any(codes):
        raise SystemExit(texts)
    one = test_ranks.tensors_in(folder / "one")
    for parallel in ("ddp", "fsdp"):
        found = test_ranks.tensors_in(folder / f"{parallel}-whole")
        yield max((x - one[name]).abs().max().item() for name, x in found.items())


def main():
    """All rows; a column for each number of processes."""
    rows = {}
    with Pool(4) as pool:
        for count in WORLDS:
            for name, case, arguments in (
                ("`prototype_codes`", cases.codes, (CODES, "streaming")),
                ("`nn.Attention`", cases.layers, ()),
                ("BERT and Llama", cases.pretrained, (list(cases.MODELS),)),
                ("`HubCorrection`, bias", cases.corrections, (90,)),
            ):
                found = pool.run(count, case, *arguments)
                rows.setdefault(name, []).append(largest(found, RESULTS))
                if case is not cases.corrections:
                    rows.setdefault(f"{name}, gradients", []).append(largest(found, GRADIENTS))
    torch.set_num_threads(1)
    for count in WORLDS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            together.train(folder / "one")
            with suppress(together.StoppedError):
                together.train(folder / "stopped", steps=6)
            for kind, apart in zip(("DDP", "FSDP"), training(count, folder), strict=True):
                rows.setdefault(f"`bistoch train`, {kind}, weights", []).append(apart)
    sys.stdout.write("| largest difference | 1 | 2 | 3 | 4 |\n| --- | --- | --- | --- | --- |\n")
    for name, numbers in rows.items():
        sys.stdout.write(f"| {name} | {' | '.join(f'{x:.0e}' for x in numbers)} |\n")


if __name__ == "__main__":
    main()
