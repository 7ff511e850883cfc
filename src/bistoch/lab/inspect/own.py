"""A run of `bistoch train` as the model: its samples, its plans, and balance in its heads."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from bistoch.lab.compare.attention import plans_by_sample
from bistoch.lab.device import CPU
from bistoch.lab.inspect.subject import BATCH_SIZE, Seen, Subject
from bistoch.lab.text import Vocabulary
from bistoch.lab.train import Classification, Task, restore_run
from bistoch.lab.train.classification import encode_arrays, encode_texts
from bistoch.lab.train.predict import read_samples
from bistoch.lab.train.run import Restored, task_of
from bistoch.lab.train.sequences import NextCharacter, characters
from bistoch.models import ViT, operators
from bistoch.nn import CausalElastic, Elastic

# test samples that are looked at if the user names none
SAMPLES = 16


def load_run(
    folder: Path,
    texts: Sequence[str] = (),
    images: Sequence[Path] = (),
    device: torch.device = CPU,
) -> Subject:
    """The model of a run with samples: texts or images of the user, or test samples of its data."""
    run = restore_run(folder)
    kind, facts = run.config["kind"], run.config["facts"]
    _check_kind(kind, texts, images)
    task: Task | None = None
    if texts:
        samples = [text if kind == "corpus" else text.strip() for text in texts]
        inputs = [_encode_text(text, number, run) for number, text in enumerate(samples, 1)]
    elif images:
        read = read_samples(run, images, "inspect")
        samples = [Path(name).name for name, _ in read]
        inputs = [encode_arrays(kind, array[None]) for _, array in read]
    else:
        task = task_of(run, run.setup.data)
        rows = range(min(SAMPLES, task.count("test")))
        samples = [_sample_name(task, row) for row in rows]
        inputs = [task.batch("test", torch.tensor([row])).inputs[0] for row in rows]
    tokens = [_tokens(run, one, facts) for one in inputs]
    # texts of different lengths are read alone, so that there is no padding
    batches = [{"inputs": one.to(device)} for one in _join(inputs)]
    run.model.to(device)
    known = task
    return Subject(
        str(folder), run.model, kind == "corpus", samples, batches, [], tokens, _notes(run, task),
        options=_options(run), about=f"{type(run.model).__name__} of `bistoch train`", own=True,
        score=None if known is None else lambda: _score(run.model, known, len(samples)),
    )  # fmt: skip


def _check_kind(kind: str, texts: Sequence[str], images: Sequence[Path]) -> None:
    given = "texts" if texts else "images" if images else ""
    takes = {"text": "texts", "corpus": "texts", "images": "images"}.get(kind, "")
    if texts and images:
        raise ValueError("inspect: give the model texts or images, one of the two")
    if given and given != takes:
        remedy = f"give it {takes}" if takes else "leave them out"
        raise ValueError(
            f"inspect: the run was trained on {kind}, but it is given {given}; {remedy}, or give "
            "no samples to look at test samples of its data"
        )


def _encode_text(text: str, number: int, run: Restored) -> Tensor:
    if not text:
        raise ValueError(f"inspect: text {number} is empty; give at least one word")
    facts = run.config["facts"]
    if run.config["kind"] == "corpus":
        vocabulary = Vocabulary("character", tuple(facts["tokens"]))
        ids = vocabulary.encode_one(characters(text, facts.get("bytes", False)))
        return torch.from_numpy(ids[: facts["length"]])[None]
    vocabulary = Vocabulary(facts["unit"], tuple(facts["tokens"]))
    return torch.from_numpy(encode_texts(vocabulary, [text], facts["length"])[0])[None]


def _sample_name(task: Task, row: int) -> str:
    if isinstance(task, NextCharacter):
        start = row * task.length
        return characters(task.texts["test"], False)[start : start + task.length]
    if not isinstance(task, Classification):
        return f"test window {row}"
    label = task.facts["classes"][task.labels["test"][row]]
    if task.kind == "text":
        return str(task.samples["test"][row])
    return f"test sample {row}, class {label}"


def _tokens(run: Restored, inputs: Tensor, facts: dict[str, Any]) -> list[str]:
    """Names of the tokens of one sample."""
    model = run.model
    if isinstance(model, ViT):
        rows, columns = model.config.grid
        patches = [
            f"patch {row + 1}:{column + 1}" for row in range(rows) for column in range(columns)
        ]
        return ["[class]"] * model.has_class + patches
    if "tokens" in facts:
        words = [facts["tokens"][i] for i in inputs[0].tolist()]
        # spaces and line ends cannot be seen
        return [{" ": "␣", "\n": "↵"}.get(word, word) for word in words]
    if run.config["kind"] == "series":
        return list(facts["columns"])
    return [f"point {place + 1}" for place in range(inputs.shape[1])]


def _join(inputs: Sequence[Tensor]) -> Iterator[Tensor]:
    """Neighbours of one shape as batches."""
    start = 0
    for place in range(1, len(inputs) + 1):
        is_end = place in (len(inputs), start + BATCH_SIZE)
        if is_end or inputs[place].shape != inputs[start].shape:
            yield torch.cat(list(inputs[start:place]))
            start = place


def _options(run: Restored) -> dict[str, object]:
    """The resolved options of the model: its sizes, and the operator of every layer."""
    setup = run.setup
    found: dict[str, object] = {"data": setup.data, "seed": setup.seed, "epoch": run.epoch}
    found |= {
        f"model: {name}": value for name, value in asdict(cast(Any, run.model.config)).items()
    }
    texts = {str(module) for module in operators(run.model).values()}
    return found | {"operator": ", ".join(sorted(texts))}


def _notes(run: Restored, task: Task | None) -> list[str]:
    notes = [] if run.finished else ["The training of this run is not finished."]
    if task is not None:
        notes.append(f"No samples were given: these are test samples of {task.name}.")
    return notes


@torch.no_grad()
def _score(model: nn.Module, task: Task, count: int) -> dict[str, float]:
    """Loss and score on the samples that are looked at."""
    device = next(model.parameters()).device
    batch = [task.batch("test", torch.tensor([row])).to(device) for row in range(count)]
    found = [(model(*one.inputs), one.target) for one in batch]
    loss = torch.cat([task.losses(*one) for one in found]).mean().item()
    score = torch.cat([task.scores(*one) for one in found]).mean().item()
    return {"loss": loss, task.score_name: score}


@torch.no_grad()
def observe_run(subject: Subject, batch: Any) -> Seen:
    """The plans of all layers in the order in which they run, and the states of all blocks.

    Layers with one query, such as those that pool, are left out: there is nothing to balance.
    """
    from bistoch.analysis import capture

    with capture(subject.model, budget=1 << 30, problems=None) as found:
        subject.model(batch["inputs"])
    size, kept = len(batch["inputs"]), [one for one in found.plans if one.plan.shape[-2] > 1]
    plans = [plans_by_sample(one, size) for one in kept]
    names = [one.name.removesuffix(".attention") for one in kept]
    return Seen([x.cpu() for x in plans], [x.state.cpu() for x in found.states], names)


def layers_of(subject: Subject) -> dict[str, Any]:
    """The layers that attend, by the names of `observe_run`, in its order."""
    names = observe_run(subject, {"inputs": subject.batches[0]["inputs"][:1]}).names
    parents = {
        name.removesuffix(".operator").removesuffix(".attention"): subject.model.get_submodule(
            name.removesuffix(".operator")
        )
        for name in operators(subject.model)
    }
    return {name: parents[name] for name in names}


@contextmanager
def swapped_run(
    subject: Subject,
    lam: float,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Iterator[None]:
    """Balance in some heads of the softmax layers, until the end of the block."""
    found = list(layers_of(subject).values())
    chosen = [found[place] for place in layers] if layers is not None else found
    kept = [(layer, layer.operator) for layer in chosen]
    for layer, operator in kept:
        own = torch.zeros(layer.heads, device=next(subject.model.parameters()).device)
        own[list(heads) if heads is not None else slice(None)] = lam
        options = {"eps": operator.eps, "scale": operator.scale}
        if subject.causal:
            layer.operator = CausalElastic(lam=own, block=8, **options)
        else:
            layer.operator = Elastic(lam=own, **options)
    try:
        yield
    finally:
        for layer, operator in kept:
            layer.operator = operator


def why_no_swap(subject: Subject) -> str | None:
    """A sentence if the model has operators of its own."""
    own = {str(module) for module in operators(subject.model).values()}
    others = sorted(text for text in own if not text.startswith("softmax"))
    if not others:
        return None
    return (
        f"This model was trained with {', '.join(others)}: its own operators are shown, and none "
        "is swapped in."
    )
