"""What `bistoch.convert` changes in models of several kinds: numbers with softmax, and time.

    $ python benchmarks/convert.py [--small] [--rounds 20] [--out benchmarks/convert.json]

Every model is converted with softmax, which must give the outputs of the model itself, and with ten
iterations of the elastic operator. Times are ratios to the model as it is: all contenders of a
model run in turn, and the shortest of many runs counts. It is the time that processors spent, not
that on the clock, so that other programs disturb it less. Models of timm and transformers are left
out where these are not installed. timm imports torchvision for its data, not for its models: where
torchvision is missing, an empty package stands in for it.
"""

import argparse
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import json
import platform
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bistoch
from bistoch.lab.machine import OtherLoad
from bistoch.lab.timing import time_in_turns

OPERATORS = {"softmax": "softmax", "elastic": "elastic(lam=0.5, iters=10)"}


class Name(type):
    """A class that has every attribute."""

    def __getattr__(cls, name: str) -> str:
        """Any name, but none that Python asks for."""
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Empty(types.ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        """Any name, but none that Python asks for."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(name, (), {})


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty torchvision."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The place of every module of torchvision."""
        if name.partition(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        """An empty one."""
        return Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


def torch_models(small: bool) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """The layers of torch."""
    dim, depth, n = (16, 2, 7) if small else (256, 6, 196)
    layer = nn.TransformerEncoderLayer(dim, 4 if small else 8, 2 * dim, batch_first=True)
    model = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    yield f"nn.TransformerEncoder, {depth} layers of {dim}, n = {n}", model, torch.randn(2, n, dim)


def timm_models(small: bool) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Vision Transformers and windows of timm, with random weights."""
    if importlib.util.find_spec("timm") is None:
        return
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.insert(0, StandIn())
    import timm

    if small:
        from timm.models.swin_transformer import SwinTransformer
        from timm.models.vision_transformer import VisionTransformer

        tokens = torch.randn(2, 3, 32, 32)
        vit = VisionTransformer(32, 8, num_classes=5, embed_dim=12, depth=2, num_heads=3)
        yield "timm VisionTransformer", vit, tokens
        swin = SwinTransformer(
            32, 4, num_classes=5, embed_dim=12, depths=(2, 2), num_heads=(3, 3), window_size=4
        )
        yield "timm SwinTransformer", swin, tokens
        return
    images = torch.randn(1, 3, 224, 224)
    for name in (
        "vit_tiny_patch16_224",
        "deit_small_patch16_224",
        "eva02_tiny_patch14_224",
        "swin_tiny_patch4_window7_224",
        "davit_tiny",
        "coatnet_0_rw_224",
    ):
        yield f"timm {name}", timm.create_model(name, pretrained=False), images


def transformers_models(small: bool) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """An encoder of transformers, with random weights."""
    if importlib.util.find_spec("transformers") is None:
        return
    from transformers import BertConfig, BertModel

    dim, depth = (12, 2) if small else (384, 6)
    config = BertConfig(
        num_hidden_layers=depth, hidden_size=dim, num_attention_heads=dim // 4 if small else 12,
        intermediate_size=4 * dim, vocab_size=1000,
    )  # fmt: skip
    words = torch.randint(1000, (2, 7 if small else 128))
    yield f"transformers BERT, {depth} layers of {dim}", BertModel(config), words


def output(model: nn.Module, tokens: Tensor) -> Tensor:
    """The result of a model as a tensor."""
    result = model(tokens)
    return result if isinstance(result, Tensor) else result[0]


def forward(model: nn.Module, tokens: Tensor) -> None:
    """One forward."""
    with torch.no_grad():
        output(model, tokens)


def both(model: nn.Module, tokens: Tensor) -> None:
    """A forward and a backward to all weights."""
    model.zero_grad()
    output(model, tokens).sum().backward()


def differences(model: nn.Module, tokens: Tensor) -> dict[str, Any]:
    """How far softmax is from the model itself, and whether `restore` brings it back."""
    found: dict[str, Any] = {"layers": len(bistoch.convert.attention_layers(model))}
    for dtype in (torch.float32, torch.float64):
        some = copy.deepcopy(model).to(dtype)
        given = tokens.to(dtype) if tokens.is_floating_point() else tokens
        with torch.no_grad():
            before = output(some, given)
            after = output(bistoch.convert(some, "softmax"), given)
            found[str(dtype).removeprefix("torch.")] = (after - before).abs().max().item()
            found["largest output"] = before.abs().max().item()
            found["restored"] = torch.equal(output(bistoch.restore(some), given), before)
    return found


def cpu_time(call: Callable[[], Any], count: int = 1) -> float:
    """Seconds that processors spent on one call."""
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


def times(model: nn.Module, tokens: Tensor, rounds: int) -> dict[str, float]:
    """The best time of converted models over that of the model itself."""
    models = {"model": model}
    for name, operator in OPERATORS.items():
        models[name] = bistoch.convert(copy.deepcopy(model), operator)
    found = {}
    calls: dict[str, Callable[..., None]] = {"forward": forward, "forward+backward": both}
    for direction, call in calls.items():
        runs = {name: partial(call, one, tokens) for name, one in models.items()}
        samples = time_in_turns(runs, rounds, warmup=2, timer=cpu_time)
        best = {name: min(some) for name, some in samples.items()}
        found |= {f"{direction}, {name}": best[name] / best["model"] for name in OPERATORS}
        found[f"{direction}, ms"] = 1e3 * best["model"]
    return found


def main() -> None:
    """Print one line per model, and write all numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny models, no times")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    load, rows = OtherLoad(), {}
    for source in (torch_models, timm_models, transformers_models):
        for name, model, tokens in source(options.small):
            rows[name] = differences(model.eval(), tokens)
            if not options.small:
                rows[name] |= times(model, tokens, options.rounds)
            shown = {
                key: f"{x:.3g}" if isinstance(x, float) else x for key, x in rows[name].items()
            }
            print(name, shown, flush=True)
    record = {
        "operators": OPERATORS, "rounds": options.rounds, "threads": options.threads,
        "torch": torch.__version__, "machine": platform.machine(), "others": load.share(),
        "models": rows,
    }  # fmt: skip
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
