"""What a study is: its cells, how to run one of them, what was published, and one figure.

The runner (`runner.py`) owns seeds, resuming, progress, records and the page: a study has no loop
over seeds, prints nothing and parses no arguments.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from bistoch.lab.device import read_device
from bistoch.lab.files import write_whole
from bistoch.lab.report import Report, Table
from bistoch.lab.stats import Verdict
from bistoch.lab.store import Result, Store
from bistoch.lab.study.results import Results
from bistoch.lab.train import StepInfo

if TYPE_CHECKING:
    from bistoch.lab.study.runner import Runner


@dataclass(frozen=True)
class Settings:
    """How to run a study.

    `smoke` is a run of seconds that shows that everything works and nothing else. `epochs` are
    those of a training; None is as many as the study has. Results go to a folder of `out` with the
    name of the study, trained networks to `out/networks`, where all studies find them. `device` is
    "cpu" or "cuda:0"; None is the accelerator of this machine, if it has one.
    """

    out: Path
    seeds: tuple[int, ...] = (0, 1)
    smoke: bool = False
    epochs: int | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.device is not None:
            read_device(self.device, "reproduce")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"reproduce: seeds must be different, but they are {self.seeds}")
        if self.epochs is not None and self.smoke:
            raise ValueError(
                f"reproduce: a smoke run has epochs of its own, but epochs={self.epochs}; leave "
                "one of --smoke and --epochs out"
            )

    def command(self, study: str) -> str:
        """The command that runs a study with these settings.

        >>> Settings(Path("here"), seeds=(3,), smoke=True).command("sinks")
        'bistoch reproduce sinks --smoke --seed 3'
        """
        seeds = "".join(f" --seed {seed}" for seed in self.seeds)
        epochs = "" if self.epochs is None else f" --epochs {self.epochs}"
        device = "" if self.device is None else f" --device {self.device}"
        return f"bistoch reproduce {study}{' --smoke' * self.smoke}{seeds}{epochs}{device}"


class Cell(NamedTuple):
    """One measurement: a name that is unique within the study, and options for `run`, as JSON.

    A cell that is not `seeded` runs once, with seed 0: what it measures has no randomness.
    """

    name: str
    options: Mapping[str, Any] = {}
    seeded: bool = True


@dataclass(frozen=True)
class Context:
    """What `Study.run` may use besides its cell and seed."""

    runner: "Runner"
    cell: Cell
    seed: int

    @property
    def sizes(self) -> Any:
        """The sizes of this run, as the study gave them."""
        return self.runner.sizes

    @property
    def smoke(self) -> bool:
        """Whether this run only shows that everything works."""
        return self.runner.settings.smoke

    @property
    def device(self) -> torch.device:
        """The device that was asked for, or the accelerator of this machine, or its CPU."""
        if self.runner.settings.device is not None:
            return torch.device(self.runner.settings.device)
        if torch.accelerator.is_available():
            return torch.accelerator.current_accelerator() or torch.device("cpu")
        return torch.device("cpu")

    @property
    def folder(self) -> Path:
        """A folder of this cell alone, for checkpoints: what was interrupted finds it again."""
        return self.folder_of(self.cell.name)

    def folder_of(self, name: str) -> Path:
        """The folder of another cell with the same seed."""
        return self.runner.place(self.runner.cells[name], self.seed).folder

    def result(self, name: str) -> Result:
        """The result of another cell with the same seed; it is run first if that is missing."""
        cell = self.runner.cells[name]
        return dict(self.runner.value(cell, self.seed if cell.seeded else 0)["result"])

    def step(self, done: int, total: int, text: str = "") -> None:
        """Report progress within the cell."""
        if self.runner.display is not None:
            self.runner.display.step(done, total, text)

    def on_step(self, info: StepInfo) -> None:
        """Report progress of a training, for `lab.train.fit(..., on_step=context.on_step)`."""
        self.step(info.step, info.steps, f"training loss {info.loss:.3f}")

    def network(
        self,
        name: str,
        configuration: object,
        make: Callable[[], nn.Module],
        train: Callable[[Any], Mapping[str, float]],
    ) -> tuple[Any, Result]:
        """A trained network in evaluation mode; trained once with this seed, then read.

        Studies share these networks: the same name, configuration and seed is the same network.

        Args:
            name: begins the name of its files.
            configuration: all that it depends on besides the seed.
            make: the network before training; random numbers are seeded before.
            train: trains it in place and returns numbers to keep with it.
        """
        folder = self.runner.settings.out / "networks"
        return trained_network(folder, name, configuration, self.seed, make, train)


@dataclass(frozen=True)
class Study:
    """A question, who asked it first, and how it is asked here.

    Args:
        name: on the command line.
        title: of the page.
        question, source: what is asked, and by whom it was claimed.
        about: what was done, for the page.
        sizes: all that a run depends on besides the options of its cells and the seed: sizes of
            networks, data, steps. Another value is another run. `run` finds it in its context.
        cells: what to run, in a smoke run or a full one.
        run: the measurements of one cell with one seed, as JSON.
        checks: the claims beside what was measured.
        tables: what the page shows in numbers; the first is printed on the terminal too.
        figure: the one figure, of matplotlib.
        caption: of the figure.
        sections: further parts of the page, for studies that need more than tables and a figure.
        seeds: those of a run that names none.
        epochs: how many a run trains that names none; None if it does not count in epochs.
    """

    name: str
    title: str
    question: str
    source: str
    about: str
    sizes: Callable[[Settings], Any]
    cells: Callable[[bool], Sequence[Cell]]
    run: Callable[[Cell, int, Context], Result]
    checks: Callable[[Results], Sequence[Verdict]] = lambda results: ()
    tables: Callable[[Results], Sequence[Table]] = lambda results: ()
    figure: Callable[[Results], Any] | None = None
    caption: str = ""
    sections: "Callable[[Results, Report, Runner], None] | None" = None
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int | None = None


def trained_network(
    folder: Path,
    name: str,
    configuration: object,
    seed: int,
    make: Callable[[], nn.Module],
    train: Callable[[Any], Mapping[str, float]],
) -> tuple[Any, Result]:
    """A trained network and its numbers, kept in a folder; see `Context.network`."""
    run = Store(folder).run(f"{name}, seed {seed}", {"network": configuration, "seed": seed})
    file = run.path.with_suffix(".pt")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        network, known = make(), run.read()
        if known is not None and file.exists():
            network.load_state_dict(torch.load(file, weights_only=True))
            return network.eval(), known
        numbers = train(network)
    content = io.BytesIO()
    torch.save(network.state_dict(), content)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(file, content.getvalue())
    # the numbers come last: they say that the weights are there
    return network.eval(), run.write(numbers)
