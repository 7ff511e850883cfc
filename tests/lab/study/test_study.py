"""One runner: cells resume, seeds are added, networks are shared, and a page is written."""

import io
import json
from dataclasses import dataclass

import pytest
import torch
from rich.console import Console

from bistoch.lab.study import (
    Cell,
    Column,
    Results,
    Row,
    Settings,
    Study,
    Verdict,
    read_record,
    run_study,
    trained_network,
)
from bistoch.lab.train import DivergedError

QUIET = Console(quiet=True)


@dataclass(frozen=True)
class Sizes:
    steps: int = 3


class Toy:
    """A study of numbers that counts what it runs."""

    def __init__(self, **more):
        self.ran, self.fails = [], set()
        self.study = Study(
            name="toy", title="A <toy>", question="Does it?", source="nobody", about="It does.",
            sizes=lambda settings: Sizes(), cells=self.cells, run=self.run, **more,
        )  # fmt: skip

    def cells(self, smoke):
        once = Cell("once", {"lam": None}, seeded=False)
        return [*(Cell(f"lam {lam}", {"lam": lam}) for lam in (0, 1)), Cell("both", {}), once]

    def run(self, cell, seed, context):
        self.ran.append((cell.name, seed))
        if (cell.name, seed) in self.fails:
            raise KeyboardInterrupt
        if cell.name == "both":
            return {"sum": sum(context.result(f"lam {lam}")["loss"] for lam in (0, 1))}
        context.step(1, context.sizes.steps, "half way")
        return {"loss": 1.0 - (cell.options["lam"] or 0) / 2 + seed / 10, "seed": seed}

    def go(self, folder, *seeds, console=QUIET):
        self.ran.clear()
        return run_study(self.study, Settings(folder, seeds, smoke=True), console)


def test_cells_run_once_and_resume(tmp_path):
    toy = Toy()
    toy.fails = {("lam 1", 1)}
    with pytest.raises(KeyboardInterrupt):
        toy.go(tmp_path, 0, 1)
    assert toy.ran == [
        ("lam 0", 0), ("lam 1", 0), ("both", 0), ("lam 0", 1), ("lam 1", 1),
    ]  # fmt: skip
    toy.fails = set()
    toy.go(tmp_path, 0, 1)
    assert toy.ran == [("lam 1", 1), ("both", 1), ("once", 0)]
    # another seed leaves the others alone
    toy.go(tmp_path, 0, 1, 2)
    assert toy.ran == [("lam 0", 2), ("lam 1", 2), ("both", 2)]
    toy.go(tmp_path, 2, 0)
    assert toy.ran == []


def test_a_cell_that_another_needs_is_run_first(tmp_path):
    toy = Toy()
    toy.study.__dict__["cells"] = lambda smoke: toy.cells(smoke)[::-1]
    toy.go(tmp_path, 3)
    assert toy.ran == [("both", 3), ("lam 0", 3), ("lam 1", 3), ("once", 0)]


def test_a_damaged_cell_is_said_and_measured_again(tmp_path):
    toy = Toy()
    toy.go(tmp_path, 0)
    (path,) = (tmp_path / "toy" / "cells").glob("lam-1-seed-0-*.json")
    path.write_text("{ half a fi")
    console = Console(file=io.StringIO(), width=200)
    toy.go(tmp_path, 0, console=console)
    assert toy.ran == [("lam 1", 0)]
    assert "is damaged and its run is repeated" in console.file.getvalue()


def test_other_sizes_are_other_runs(tmp_path):
    toy = Toy()
    toy.go(tmp_path, 0)
    toy.study.__dict__["sizes"] = lambda settings: Sizes(steps=4)
    toy.go(tmp_path, 0)
    assert len(toy.ran) == 4


def test_the_page_and_the_record(tmp_path):
    toy = Toy(
        checks=lambda results: [
            results.claim("less loss", "lam 1", "lam 0", "loss", larger=False),
            Verdict("a claim", "0 < 1", "no"),
        ],
        tables=lambda results: [
            results.table(
                [Column("loss", "loss", ".2f", compared=True)], "A table.", baseline="lam 0",
                names=["lam 0", "lam 1", "once"], more={"published": {"lam 1": "0.4"}},
            )
        ],
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=100)
    page = toy.go(tmp_path, 0, 1, console=console).read_text(encoding="utf-8")
    assert "<title>A &lt;toy&gt;</title>" in page
    told = "1 of 2 claims holds here, 1 does not. Less loss: yes, measured -0.500"
    assert page.index(told) < page.index("Does it?")
    assert told in console.file.getvalue()
    assert "bistoch reproduce toy --smoke --seed 0 --seed 1" in page
    assert "smoke run" in page
    assert "0 &lt; 1" in page
    assert "-0.50 [-0.50, -0.50]" in page
    assert "half way" not in console.file.getvalue()
    assert "7/7 once" in console.file.getvalue()
    record = json.loads((tmp_path / "toy" / "report.json").read_text())
    assert record["verdicts"][0]["holds"] == "yes"
    assert {"command", "date", "machine", "seeds", "sizes", "seconds"} <= set(record)
    results = read_record(tmp_path / "toy" / "report.json")
    assert results.sizes == {"steps": 3}
    assert results.values("lam 1", "loss") == [0.5, 0.6]


def test_a_run_that_diverges_is_a_result(tmp_path):
    toy = Toy(tables=lambda results: [results.table([Column("loss", "loss")])])

    def run(cell, seed, context):
        if cell.options.get("lam") == 1 and seed == 1:
            raise DivergedError("the loss became NaN")
        return {"loss": 0.5}

    toy.study.__dict__["run"] = run
    page = toy.go(tmp_path, 0, 1).read_text(encoding="utf-8")
    assert "lam 1, seed 1: the loss became NaN" in page
    results = read_record(tmp_path / "toy" / "report.json")
    assert results.values("lam 1", "loss") == [0.5]
    assert results.difference("lam 1", "lam 0", "loss").each == (0.0,)


def test_trained_networks_are_shared_and_leave_random_numbers_alone(tmp_path):
    trained = []

    def make():
        return torch.nn.Linear(3, 2)

    def train(network):
        trained.append(network)
        with torch.no_grad():
            network.weight += torch.randn(2, 3)
        return {"accuracy": 0.5}

    before = torch.get_rng_state()
    first, numbers = trained_network(tmp_path, "line", {"dim": 3}, 0, make, train)
    again, same = trained_network(tmp_path, "line", {"dim": 3}, 0, make, train)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(trained) == 1
    assert numbers == same == {"accuracy": 0.5}
    assert torch.equal(first.weight, again.weight)
    assert not again.training
    trained_network(tmp_path, "line", {"dim": 3}, 1, make, train)
    assert len(trained) == 2


def rows(**scores):
    return [
        Row(name, seed, {}, {"loss": value, "nested": {"hits": hits}})
        for name, values in scores.items()
        for seed, (value, hits) in enumerate(values)
    ]


def test_differences_are_paired_by_seed_or_by_sample():
    results = Results(
        rows(
            ours=[(1.9, [1, 1, 1, 0] * 9), (2.91, [1, 1] * 18), (3.89, [1, 0] * 18)],
            theirs=[(2.0, [0, 1, 0, 0] * 9), (3.0, [1, 0] * 18), (4.0, [1, 0] * 18)],
        )
    )
    found = results.difference("ours", "theirs", "loss")
    assert found.each == pytest.approx((-0.1, -0.09, -0.11))
    # the spread of the seeds is large, that of the differences is not
    assert results.claim("", "ours", "theirs", "loss", larger=False).holds == "yes"
    assert results.claim("", "ours", "theirs", "loss", larger=True).holds == "no, the opposite"
    samples = results.difference("ours", "theirs", "nested.hits")
    assert len(samples.each) == 108
    assert samples.mean == pytest.approx((18 + 18) / 108)
    assert not samples.inconclusive
    assert results.difference("ours", "theirs", "missing") is None
    assert results.claim("", "ours", "nobody", "loss", larger=True).holds == "inconclusive"
    one = Results(rows(ours=[(1.0, [1])], theirs=[(2.0, [0])]))
    assert one.claim("", "ours", "theirs", "loss", larger=False).holds == "inconclusive"


def test_settings(tmp_path):
    with pytest.raises(ValueError, match="seeds must be different"):
        Settings(out=tmp_path, seeds=(1, 1))
    with pytest.raises(ValueError, match="a smoke run has epochs of its own"):
        Settings(out=tmp_path, smoke=True, epochs=3)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="reproduce: device must be cpu here"):
            Settings(out=tmp_path, device="cuda")
    assert Settings(tmp_path, (0,), device="cpu").command("x").endswith("--seed 0 --device cpu")
    settings = Settings(out=tmp_path, seeds=(0,), epochs=3)
    assert settings.command("x") == "bistoch reproduce x --seed 0 --epochs 3"
