"""Configs of models: from their text, and checked."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

from torch import Tensor, nn

from bistoch.functional import check_options, inputs, read_call
from bistoch.nn import OperatorModule
from bistoch.nn.heads import check_division

Kind = Literal["images", "points", "text", "tokens", "corpus", "series"]


@dataclass(frozen=True)
class Model:
    """A row of the table of models.

    `config` is the class of its sizes, `model` is made from one of these and an operator. `data`
    are the kinds of data it takes, and `sizes` the fields of `config` that the data decide.
    `operator` is the one it is built with unless another is given; None if it takes none, since its
    attention is its own.
    """

    config: type[Any]
    model: type[nn.Module]
    data: tuple[Kind, ...]
    sizes: tuple[str, ...]
    operator: str | None = "softmax"


@dataclass(frozen=True)
class Preset:
    """Options of a model under a name of their own, and where they come from."""

    model: str
    options: Mapping[str, Any]
    source: str


def find_row(text: str, models: Mapping[str, Model], presets: Mapping[str, Preset]) -> Model:
    """The row of "name" or "name(option=value, ...)", a model or a preset."""
    name, _ = read_call(text, "model", "vit(depth=2, dim=128)")
    if name not in models and name not in presets:
        known = ", ".join([*models, *presets])
        raise ValueError(f"model: unknown name {name!r} in {text!r}; known are {known}")
    return models[presets[name].model if name in presets else name]


def make_config(
    text: str, models: Mapping[str, Model], presets: Mapping[str, Preset], **options: Any
) -> tuple[Model, Any]:
    """The row and the config of "name" or "name(option=value, ...)", a model or a preset.

    Options in the text override those of the preset, and options given by name override both.
    """
    name, written = read_call(text, "model", "vit(depth=2, dim=128)")
    row = find_row(text, models, presets)
    known_fields = {field.name: field for field in fields(row.config)}
    preset = presets[name].options if name in presets else {}
    wanted = {**preset, **written, **options}
    check_options(name, wanted, known_fields)
    required = [f.name for f in known_fields.values() if f.default is MISSING]
    if lacking := [field for field in required if field not in wanted]:
        raise TypeError(
            f"{name}: {' and '.join(lacking)} must be given, since the data decide; write for "
            f'example build_model("{name}", {lacking[0]}=...)'
        )
    # JSON has no tuples: a config that was saved holds lists
    wanted = {k: tuple(v) if isinstance(v, list) else v for k, v in wanted.items()}
    return row, row.config(**wanted)


def check_sizes(model: str, config: Any, *counts: str) -> None:
    """Check that some fields of a config are at least one, and that heads divide dim."""
    for name in counts:
        inputs.check_count(model, name, getattr(config, name), least=1)
    check_division(model, "dim", config.dim, "heads", config.heads)


def check_windows(model: str, windows: Tensor, lookback: int, channels: int) -> None:
    """Check the input of a forecaster: windows of the length and the channels it was built for."""
    inputs.check_floating(model, "windows", windows, axes="(batch, lookback, channels)", rank=3)
    if windows.shape[1:] != (lookback, channels):
        raise ValueError(
            f"{model}: windows must be (batch, lookback, channels) = (batch, {lookback}, "
            f"{channels}), but their shape is {tuple(windows.shape)}; build the model for that "
            "lookback and channels"
        )


def operators(model: nn.Module) -> dict[str, OperatorModule]:
    """The operators of a model by the names of their modules.

    >>> import bistoch
    >>> operators(bistoch.nn.Block(8, heads=2, operator="elastic(lam=0.5)"))
    {'attention.operator': elastic(lam=0.5)}
    """
    named = model.named_modules()
    return {name: module for name, module in named if isinstance(module, OperatorModule)}
