"""Small models, one file each, with the operator injected.

`MODELS` lists them, `PRESETS` published configurations; `build_model` makes either by name.
"""

from types import MappingProxyType
from typing import Any

from torch import nn

from bistoch.models.build import Model as Model
from bistoch.models.build import Preset as Preset
from bistoch.models.build import find_row, make_config
from bistoch.models.build import operators as operators
from bistoch.models.dlinear import DLinear as DLinear
from bistoch.models.dlinear import DLinearConfig as DLinearConfig
from bistoch.models.forecast import ForecastConfig as ForecastConfig
from bistoch.models.forecast import Forecaster as Forecaster
from bistoch.models.itransformer import ITransformer as ITransformer
from bistoch.models.itransformer import ITransformerConfig as ITransformerConfig
from bistoch.models.lm import LanguageConfig as LanguageConfig
from bistoch.models.lm import LanguageModel as LanguageModel
from bistoch.models.points import PointConfig as PointConfig
from bistoch.models.points import PointTransformer as PointTransformer
from bistoch.models.sets import SetConfig as SetConfig
from bistoch.models.sets import SetTransformer as SetTransformer
from bistoch.models.stochastic_vit import ClassDistance as ClassDistance
from bistoch.models.stochastic_vit import StochasticViT as StochasticViT
from bistoch.models.stochastic_vit import StochasticViTConfig as StochasticViTConfig
from bistoch.models.text import TextConfig as TextConfig
from bistoch.models.text import TextEncoder as TextEncoder
from bistoch.models.vit import ViT as ViT
from bistoch.models.vit import ViTConfig as ViTConfig

MODELS = MappingProxyType({
    "vit": Model(ViTConfig, ViT, ("images",), ("image", "channels", "classes")),
    "stochastic_vit": Model(
        StochasticViTConfig, StochasticViT, ("images",), ("image", "channels", "classes"),
        operator=None,
    ),
    "set_transformer": Model(SetConfig, SetTransformer, ("points",), ("coordinates", "classes")),
    "point_transformer": Model(
        PointConfig, PointTransformer, ("points",), ("coordinates", "classes")
    ),
    "text": Model(TextConfig, TextEncoder, ("text", "tokens"), ("vocabulary", "classes")),
    "lm": Model(LanguageConfig, LanguageModel, ("corpus",), ("vocabulary",)),
    "forecast": Model(ForecastConfig, Forecaster, ("series",), ("channels",), "mixing"),
    "itransformer": Model(ITransformerConfig, ITransformer, ("series",), ("channels",)),
})  # fmt: skip

PRESETS = MappingProxyType({
    # seven stripes and a class token: eight tokens
    "vit_stripes": Preset(
        "vit",
        {"image": (28, 28), "patch": (4, 28), "classes": 10, "depth": 2, "dim": 128, "heads": 1,
         "mlp": 1},
        "Born et al. 2025, QDSFormer, FashionMNIST and MNIST",
    ),
    # attention alone; the published patches were squares of 1, 2, 4, 7, 14 and 28 pixels
    "vit_attention_only": Preset(
        "vit",
        {"image": (28, 28), "patch": (7, 7), "classes": 10, "depth": 1, "dim": 128, "heads": 1,
         "mlp": 0},
        "Sander et al. 2022, Sinkformers, MNIST",
    ),
    "set_sinkformer": Preset(
        "set_transformer",
        {"depth": 2, "dim": 256, "heads": 4, "inducing": 16, "seeds": 1, "dropout": 0.5},
        "Sander et al. 2022, Sinkformers, ModelNet40",
    ),
    # one head in all features; the published queries and keys have a quarter of them
    "point_pct": Preset(
        "point_transformer",
        {"depth": 4, "dim": 128, "heads": 1, "summary": 1024, "dropout": 0.5},
        "Guo et al. 2021, PCT, ModelNet40",
    ),
    "text_sinkformer": Preset(
        "text",
        {"classes": 2, "depth": 6, "dim": 256, "heads": 8, "mlp": 4, "norm": "post",
         "pool": "max", "dropout": 0.1},
        "Sander et al. 2022, Sinkformers, IMDb",
    ),
    "text_small": Preset(
        "text", {"depth": 2, "dim": 64, "heads": 4, "mlp": 2}, "this library, IMDb and SST-2"
    ),
    "forecast_etth1": Preset(
        "forecast",
        {"channels": 7, "lookback": 96, "depth": 2, "dim": 512, "extend": 16, "mlp": 1,
         "dropout": 0.2},
        "Yue et al. 2025, OLinear, ETTh1",
    ),
})  # fmt: skip


def build_model(name: str, operator: str | nn.Module | None = None, **config: Any) -> nn.Module:
    """Make a model of the table, or of a preset, with an operator.

    Args:
        name: "vit", or "vit(depth=2, dim=128)" with fields of its config as literals.
        operator: text or module for `bistoch.nn.Attention`; every layer has its own. By default
            that of the row: "mixing" for "forecast", "softmax" for others. "stochastic_vit" takes
            none.
        config: more fields of the config; they win over those in the text.

    >>> model = build_model("vit_stripes(depth=1)", operator="elastic(lam=0.5)")
    >>> model.config.grid, model.config.depth, operators(model)
    ((7, 1), 1, {'blocks.0.attention.operator': elastic(lam=0.5)})
    """
    row, made = make_config(name, MODELS, PRESETS, **config)
    if row.operator is not None:
        return row.model(made, row.operator if operator is None else operator)
    if operator is not None:
        raise ValueError(
            f"{name}: the model takes no operator, since its attention is its own, but operator is "
            f"{operator!r}; leave it out, and choose the plan by options of the model, such as "
            '"stochastic_vit(lam=0.5)"'
        )
    return row.model(made)


def default_operator(name: str) -> str | None:
    """The operator that a model is built with unless another is given; None if it takes none.

    >>> default_operator("vit(depth=2)"), default_operator("forecast_etth1")
    ('softmax', 'mixing')
    """
    return find_row(name, MODELS, PRESETS).operator
