"""Load a converted model: its operators are in place before its weights are read."""

from os import PathLike
from typing import TYPE_CHECKING, Any

from bistoch.integrations.huggingface.convert import convert_as_recorded
from bistoch.integrations.huggingface.interface import NAME, import_interfaces

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# the options that say which configuration to read
WHERE = (
    "cache_dir",
    "force_download",
    "local_files_only",
    "revision",
    "subfolder",
    "token",
    "trust_remote_code",
)


def from_pretrained(kind: Any, path: str | PathLike[str], **options: Any) -> "PreTrainedModel":
    """Load a model that was converted and saved, with what its operators learned.

    `save_pretrained` of a converted model writes the operators into `config.json` and their
    parameters among the weights. A model that was not converted is loaded as it is.

    Args:
        kind: the class that loads, such as `AutoModel`, `AutoModelForSequenceClassification`,
            or `BertModel`.
        path: a folder, or a name on the hub.
        options: whatever `from_pretrained` of transformers takes.

    >>> import tempfile
    >>> from transformers import AutoModel, BertConfig, BertModel
    >>> from bistoch.integrations.huggingface import convert
    >>> config = BertConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
    >>> model = convert(BertModel(config), lam=0.25)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save_pretrained(folder)
    ...     again = from_pretrained(AutoModel, folder)
    >>> again.encoder.layer[0].attention.self.bistoch.operator.lam.tolist()
    [0.25, 0.25]
    """
    import_interfaces()
    import torch
    from transformers import AutoConfig

    config = options.get("config")
    if config is None:
        config = AutoConfig.from_pretrained(path, **{k: options[k] for k in WHERE if k in options})
    if not getattr(config, NAME, None):
        return kind.from_pretrained(path, **options)
    if hasattr(kind, "from_config"):
        # an Auto class knows which class it stands for; a model without memory tells its own
        with torch.device("meta"):
            kind = type(kind.from_config(config))
    model, found = _with_operators(kind).from_pretrained(path, output_loading_info=True, **options)
    model.__class__ = kind
    lost = sorted(key for key in found["missing_keys"] if f".{NAME}." in key)
    if lost:
        raise ValueError(
            f"from_pretrained: {path} says that it was converted, but its weights lack {lost[0]}; "
            "save the converted model again with save_pretrained"
        )
    return model


def _with_operators(kind: Any) -> Any:
    """The class of a model, but one that converts itself as soon as it is built."""

    def build(self: Any, config: Any, *arguments: Any, **options: Any) -> None:
        kind.__init__(self, config, *arguments, **options)
        convert_as_recorded(self, getattr(config, NAME))

    # the same name and module: transformers reads both
    return type(kind.__name__, (kind,), {"__init__": build, "__module__": kind.__module__})
