"""How a model was converted and what its operators learned, as a small file beside its weights."""

import json
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bistoch.convert.api import BEFORE, Model, convert, converted_layers
from bistoch.convert.layers import count_heads, find_layers
from bistoch.convert.modules import NAME
from bistoch.functional import OPERATORS, parse_operator

FORMAT = 1


def record(model: nn.Module) -> dict[str, Any]:
    """How a model was converted, as a dictionary that fits into JSON; weights are not in it.

    >>> model = convert(nn.Sequential(nn.MultiheadAttention(16, 4)), "elastic", heads=[1], lam=0.5)
    >>> record(model)["layers"]
    {'0': {'operator': "elastic(learn='head')", 'heads': [1], 'count': 4}}
    """
    layers = {}
    for name, module in converted_layers(model).items():
        if BEFORE in vars(module):
            _, text, heads, count = vars(module)[BEFORE]
        else:
            swap: Any = getattr(module, NAME)
            text, heads, count = swap.text, swap.heads, swap.count
        layers[name] = {"operator": text, "heads": heads, "count": count}
    return {"format": FORMAT, "model": type(model).__name__, "layers": layers}


def apply(model: Model, saved: dict[str, Any]) -> Model:
    """Convert a model as a record says, in place; what operators learned is loaded elsewhere.

    Layers that are converted so already stay as they are.

    >>> model = convert(nn.Sequential(nn.MultiheadAttention(16, 4)), heads=[1, 2])
    >>> fresh = nn.Sequential(nn.MultiheadAttention(16, 4))
    >>> apply(fresh, record(model)).load_state_dict(model.state_dict())
    <All keys matched successfully>
    """
    wanted = _check_record(saved)
    present = record(model)["layers"]
    known = {layer.name: (number, layer) for number, layer in enumerate(find_layers(model))}
    groups: dict[tuple[str, Any], list[int]] = defaultdict(list)
    for name, entry in wanted.items():
        if name not in known:
            raise ValueError(
                f"apply: the record is of a {saved['model']} with an attention layer {name!r}, "
                f"which this {type(model).__name__} does not have; its layers are "
                f"{', '.join(known)}. Make the model as it was when the record was saved"
            )
        number, layer = known[name]
        count = count_heads(layer)
        if entry["count"] is not None and count is not None and count != entry["count"]:
            raise ValueError(
                f"apply: layer {name!r} had {entry['count']} heads when the record was saved, but "
                f"has {count} in this {type(model).__name__}; make the model as it was then"
            )
        parse_operator(entry["operator"], OPERATORS)
        if present.get(name) != entry:
            heads = entry["heads"]
            groups[entry["operator"], None if heads is None else tuple(heads)].append(number)
    changed = [name for name in present if present[name] != wanted.get(name)]
    if changed:
        raise ValueError(
            f"apply: layer {changed[0]!r} of the model was converted in another way than the "
            "record says; call bistoch.restore(model) first"
        )
    for (operator, heads), numbers in groups.items():
        convert(model, operator, layers=numbers, heads=heads)
    return model


def save(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write how a model was converted and what its operators learned, whole or not at all.

    The weights of the model itself are not in the file, which is small: keep it beside them.

    Args:
        model: a converted model.
        path: ends in ".json", or in ".safetensors" (needs that package).
    """
    path, content = Path(path), record(model)
    if not content["layers"]:
        raise ValueError(
            f"save: this {type(model).__name__} was not converted; call bistoch.convert first"
        )
    tensors = _learned(model)
    if path.suffix == ".safetensors":
        text = json.dumps(content)
        data = _safetensors("save").save(_distinct(tensors), metadata={NAME: text})
    elif path.suffix == ".json":
        content["learned"] = {name: _to_json(tensor) for name, tensor in tensors.items()}
        data = (json.dumps(content, indent=1) + "\n").encode()
    else:
        raise ValueError(f"save: path must end in .json or .safetensors, but it is {str(path)!r}")
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    return path


def load(model: Model, path: str | os.PathLike[str]) -> Model:
    """Convert a model as it was when it was saved, in place, with what its operators had learned.

    >>> model = convert(nn.Sequential(nn.MultiheadAttention(16, 4)), lam=[0.0, 0.25, 0.5, 1.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = save(model, Path(folder) / "lam.json")
    ...     again = load(nn.Sequential(nn.MultiheadAttention(16, 4)), file)
    >>> again[0].bistoch.operator.lam.tolist()
    [0.0, 0.25, 0.5, 1.0]
    """
    path = Path(path)
    try:
        content, tensors = _read(path)
        _check_record(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"load: {path} was not written by bistoch.convert.save ({error})"
        ) from error
    apply(model, content)
    own = _learned(model)
    for name in own.keys() | tensors.keys():
        shapes = [tuple(some[name].shape) if name in some else None for some in (own, tensors)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"load: {name} has the shape {shapes[1]} in {path}, but {shapes[0]} in this "
                f"{type(model).__name__}; make the model as it was when the file was saved"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
    return model


def _learned(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of swapped operators, by their names in the model."""
    found: dict[str, Tensor] = {}
    for name, module in converted_layers(model).items():
        child = "operator" if BEFORE in vars(module) else NAME
        inner = getattr(module, child).state_dict(keep_vars=True)
        found |= {f"{name}.{child}.{key}".lstrip("."): tensor for key, tensor in inner.items()}
    return found


def _check_record(saved: Any) -> dict[str, dict[str, Any]]:
    wanted = {"operator", "heads", "count"}
    layers = saved.get("layers") if isinstance(saved, dict) else None
    if not isinstance(layers, dict) or any(set(entry) != wanted for entry in layers.values()):
        raise ValueError(
            f"apply: the record must be what bistoch.convert.record returns, but it is {saved!r}"
        )
    if saved.get("format") != FORMAT:
        raise ValueError(
            f"apply: the record has the format {saved.get('format')!r}, but this bistoch "
            f"reads {FORMAT}; update bistoch"
        )
    return layers


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if path.suffix == ".safetensors":
        _safetensors("load")
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as stored:
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
                return json.loads(stored.metadata()[NAME]), tensors
        except SafetensorError as error:
            raise ValueError(str(error)) from error
    content = json.loads(path.read_text(encoding="utf-8"))
    return content, {name: _from_json(one) for name, one in content.pop("learned").items()}


def _to_json(tensor: Tensor) -> dict[str, Any]:
    # every number of every dtype has its own text
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "values": tensor.tolist()}


def _from_json(saved: dict[str, Any]) -> Tensor:
    return torch.tensor(saved["values"], dtype=getattr(torch, saved["dtype"]))


def _distinct(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _safetensors(function: str) -> Any:
    try:
        import safetensors.torch
    except ImportError as missing:
        raise ImportError(
            f"{function}: files that end in .safetensors need the package safetensors; install it "
            "with pip install safetensors, or use a file that ends in .json"
        ) from missing
    return safetensors.torch
