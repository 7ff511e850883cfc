"""The study from text to report: every run is trained once, measured once, and then only read."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bistoch.lab.files import digest, write_whole
from bistoch.lab.machine import describe_machine
from bistoch.lab.reproduce.causal_lm.measure import attention, beside_oracle, bits
from bistoch.lab.reproduce.causal_lm.plan import FULL, SMOKE, Line, Plan, new_model, open_text
from bistoch.lab.reproduce.causal_lm.report import write_report
from bistoch.lab.reproduce.study import Settings
from bistoch.lab.train import StepInfo, fit
from bistoch.lab.train.checkpoint import import_safetensors, load_checkpoint, load_weights
from bistoch.lab.train.loop import CHECKPOINT, make_optimizer
from bistoch.lab.train.sequences import NextCharacter

RESULT, RESULTS = "result.json", "causal-lm.json"
ROUNDS, WARM_UP = 7, 1

Watch = Callable[[str, StepInfo], None]


def run_causal_lm(settings: Settings, console: Console) -> Path:
    """Train what is missing, seed by seed, and write table, picture and report; its path."""
    import_safetensors()
    plan = SMOKE if settings.smoke else FULL
    out = settings.out / "causal-lm"
    task = open_text(plan)
    rows: list[dict[str, Any]] = []
    try:
        with _shown(console, len(settings.seeds) * len(plan.lines)) as watch:
            for seed in settings.seeds:
                for line in plan.lines:
                    rows.append(run_line(plan, line, task, seed, out, watch))
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here")
        raise
    found = {
        "command": settings.command("causal-lm"),
        "date": time.strftime("%Y-%m-%d"),
        "smoke": settings.smoke,
        "machine": describe_machine(),
        "plan": json.loads(json.dumps(asdict(plan))),
        "characters": {split: len(numbers) for split, numbers in task.ids.items()},
        "rows": rows,
        "oracle": _oracle_once(plan, task, settings.seeds[0], out),
        "time": _time_once(plan, task, out),
    }
    write_whole(out / RESULTS, json.dumps(found, indent=1).encode())
    return write_report(found, out, console)


def run_line(
    plan: Plan, line: Line, task: NextCharacter, seed: int, out: Path, watch: Watch | None = None
) -> dict[str, Any]:
    """Train and measure a line with a seed; one that is finished is read, one killed goes on."""
    folder = run_folder(plan, line, task, seed, out)
    path = folder / RESULT
    if path.exists():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    model = new_model(plan, line, task, seed)
    told = None if watch is None else lambda moment: watch(f"{line.name}, seed {seed}", moment)
    fitted = fit(model, task, plan.recipe, folder=folder, seed=seed, on_step=told)
    # what a learned place was not made for cannot be read
    lengths = plan.tested[:1] if line.learned_places else plan.tested
    text, longest = task.ids["test"], max(plan.tested)
    result: dict[str, Any] = {
        "name": line.name,
        "seed": seed,
        "bits": {str(length): bits(model, text, length, longest) for length in lengths},
        "attention": {
            str(length): attention(model, _windows(plan, text, length)) for length in lengths
        },
        "curve": fitted.curve,
        "steps": fitted.steps,
        "seconds": fitted.seconds,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    write_whole(path, json.dumps(result).encode())
    return result


def run_folder(plan: Plan, line: Line, task: NextCharacter, seed: int, out: Path) -> Path:
    """The folder of a run: readable, and another one for every other plan."""
    facts = {name: value for name, value in asdict(plan).items() if name != "lines"}
    name = re.sub(r"[^a-z0-9.]+", "-", line.name.lower())
    counts = [task.count(split) for split in ("train", "valid", "test")]
    return out / "runs" / f"{name}-seed-{seed}-{digest(facts, tuple(line), counts)}"


def _windows(plan: Plan, text: torch.Tensor, length: int) -> torch.Tensor:
    """Some windows, the same characters for every length."""
    count = min(plan.looked_at * plan.length, len(text)) // max(plan.tested) * max(plan.tested)
    return text[:count].reshape(-1, length)


def _oracle_once(plan: Plan, task: NextCharacter, seed: int, out: Path) -> dict[str, Any]:
    """The heads of the model with softmax beside the oracle, measured once and then read."""
    line = plan.lines[0]
    folder = run_folder(plan, line, task, seed, out)
    path = folder / "oracle.json"
    if not path.exists():
        model = new_model(plan, line, task, seed).eval()
        _, tensors = load_checkpoint(folder / CHECKPOINT)
        load_weights(folder / CHECKPOINT, tensors, model, "model")
        found = beside_oracle(model, task.ids["test"][: plan.length], plan.block)
        write_whole(path, json.dumps(found).encode())
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _time_once(plan: Plan, task: NextCharacter, out: Path) -> dict[str, Any]:
    """The time of a training step by line, measured once and then read."""
    facts = {name: value for name, value in asdict(plan).items() if name != "lines"}
    path = out / f"times-{digest(facts, plan.lines, torch.get_num_threads())}.json"
    if not path.exists():
        write_whole(path, json.dumps(_time_steps(plan, task)).encode())
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _time_steps(plan: Plan, task: NextCharacter) -> dict[str, Any]:
    """Seconds of a step, the best of several rounds in which all take turns."""
    batch = task.batch("train", torch.arange(plan.recipe.batch_size))
    best: dict[str, float] = {}
    models = {line.name: new_model(plan, line, task, 0).train() for line in plan.lines}
    optimizers = {name: make_optimizer(model, plan.recipe) for name, model in models.items()}
    for turn in range(WARM_UP + ROUNDS):
        for name, model in models.items():
            began = time.perf_counter()
            optimizers[name].zero_grad(set_to_none=True)
            task.losses(model(*batch.inputs), batch.target).mean().backward()
            optimizers[name].step()
            took = time.perf_counter() - began
            if turn >= WARM_UP:
                best[name] = min(took, best.get(name, took))
    return {"seconds": best, "threads": torch.get_num_threads()}


@contextmanager
def _shown(console: Console, runs: int) -> Iterator[Watch]:
    words = TextColumn("{task.description}")
    columns = (words, BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar, names = progress.add_task("the first step", total=None), list[str]()

        def watch(name: str, moment: StepInfo) -> None:
            if name not in names:
                names.append(name)
                if not console.is_terminal:
                    console.print(f"{name} ({len(names)} of at most {runs} runs)")
            progress.update(
                bar, total=moment.steps, completed=moment.step,
                description=f"{name}: train {moment.loss:.3f}",
            )  # fmt: skip

        yield watch
