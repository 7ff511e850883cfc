"""Small models, one file each, with the operator injected.

`MODELS` lists them, `PRESETS` the published set-ups; `build_model` makes either by name.
"""

from types import MappingProxyType
from typing import Any

from torch import nn

from bistoch.models.build import Model as Model
from bistoch.models.build import Preset as Preset
from bistoch.models.build import make_config
from bistoch.models.build import operators as operators
from bistoch.models.vit import ViT as ViT
from bistoch.models.vit import ViTConfig as ViTConfig

MODELS = MappingProxyType({
    "vit": Model(ViTConfig, ViT, ("images",), ("image", "channels", "classes")),
})  # fmt: skip

PRESETS = MappingProxyType({
    # seven stripes and a class token: eight tokens
    "vit_stripes": Preset(
        "vit",
        {"image": (28, 28), "patch": (4, 28), "classes": 10, "depth": 2, "dim": 128, "heads": 1,
         "mlp": 1},
        "Born et al. 2025, QDSFormer, FashionMNIST and MNIST",
    ),
})  # fmt: skip


def build_model(name: str, operator: str | nn.Module = "softmax", **config: Any) -> nn.Module:
    """Make a model of the table, or of a preset, with an operator.

    Args:
        name: "vit", or "vit(depth=2, dim=128)" with fields of its config as literals.
        operator: text or module for `bistoch.nn.Attention`; every layer has its own.
        config: more fields of the config; they win over those in the text.

    >>> model = build_model("vit_stripes(depth=1)", operator="elastic(lam=0.5)")
    >>> model.config.grid, model.config.depth, operators(model)
    ((7, 1), 1, {'blocks.0.attention.operator': elastic(lam=0.5)})
    """
    row, made = make_config(name, MODELS, PRESETS, **config)
    return row.model(made, operator)
