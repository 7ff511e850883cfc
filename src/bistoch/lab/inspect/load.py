"""Load a model of transformers with its inputs; every error is one sentence."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bistoch.lab.inspect.images import find_images, read_images
from bistoch.lab.train.run import is_run

# plans of all heads are kept, so batches are small
BATCH_SIZE = 16


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode, and its inputs.

    `samples` are the texts or the names of the images, `batches` the arguments of the model,
    `tokens` the tokens of every sample, `real` says which tokens of a batch are no padding.
    """

    name: str
    model: Any
    causal: bool
    samples: list[str]
    batches: list[dict[str, Tensor]]
    real: list[Tensor]
    tokens: list[list[str]]
    notes: list[str]


def load_subject(name: str, texts: Sequence[str] = (), images: Sequence[Path] = ()) -> Subject:
    """Load a model, from a folder or the hub, with texts or images to look at.

    Args:
        name: a folder with a `config.json`, or the name of a model on the hub.
        texts: for text models.
        images: files, or folders of them, for image models.
    """
    if bool(texts) == bool(images):
        raise ValueError(
            "inspect: give the model texts, with --text or --file, or images, with --images; one "
            "of the two"
        )
    transformers = import_transformers()
    with _quiet(transformers):
        config = _read_config(transformers, name)
        model, causal, notes = _load_model(transformers, name, config)
        takes_images = model.main_input_name == "pixel_values"
        if takes_images != bool(images):
            given, wanted = ("--images", "--text or --file") if images else ("--text", "--images")
            kind = "images" if takes_images else "texts"
            raise ValueError(f"inspect: {name} takes {kind}; use {wanted} instead of {given}")
        if takes_images:
            files = find_images(images)
            batches, tokens, note = read_images(transformers, name, config, files, BATCH_SIZE)
            real = [torch.ones(len(b["pixel_values"]), len(tokens[0])).bool() for b in batches]
            samples = [file.name for file in files]
            notes += note
        else:
            samples = [text.strip() for text in texts]
            batches, real, tokens = read_texts(transformers, name, config, samples)
    return Subject(name, model, causal, samples, batches, real, tokens, notes)


def import_transformers() -> Any:
    """The package, or one sentence about how to get it."""
    try:
        import transformers
    except ImportError as missing:
        raise ImportError(
            "inspect needs transformers; install it with: pip install 'bistoch[huggingface]'"
        ) from missing
    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    # its messages while loading are about its internals
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()


def _read_config(transformers: Any, name: str) -> Any:
    if is_run(Path(name)):
        raise ValueError(
            f"inspect: {name} is a run of `bistoch train`, and inspect reads models of "
            f"transformers; `bistoch eval {name}` scores the run, and the report of `bistoch "
            "compare` shows what the attention of trained models does"
        )
    try:
        return transformers.AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as reason:
        first = str(reason).strip().splitlines()[0][:200]
        raise ValueError(
            f"inspect: cannot find the model {name!r}: there is no such folder with a config.json, "
            f"and no model of this name that can be reached on the hub ({first})"
        ) from None


def _load_model(transformers: Any, name: str, config: Any) -> tuple[Any, bool, list[str]]:
    """The model, whether it is causal, and notes for the report."""
    from bistoch.integrations import huggingface

    architecture = (getattr(config, "architectures", None) or [""])[0]
    is_lm = architecture.endswith(("ForCausalLM", "LMHeadModel"))
    kind = transformers.AutoModelForCausalLM if is_lm else transformers.AutoModel
    try:
        # only eager attention returns its plans
        model = huggingface.from_pretrained(kind, name, attn_implementation="eager").eval()
    except (OSError, ValueError, KeyError) as reason:
        first = str(reason).strip().splitlines()[0][:200]
        raise ValueError(f"inspect: cannot load the model {name!r}: {first}") from None
    notes = []
    if getattr(config, "is_encoder_decoder", False):
        model = model.get_encoder()
        notes.append("This model has an encoder and a decoder; the encoder is shown.")
    return model, _is_causal(model), notes


def _is_causal(model: Any) -> bool:
    from bistoch.integrations.huggingface import attention_layers
    from bistoch.integrations.huggingface.layers import hides_the_future

    try:
        layers = attention_layers(model)
    except NotImplementedError:
        return bool(getattr(model.config, "is_decoder", False)) or hasattr(model, "generate")
    return any(hides_the_future(name, layer) for name, layer in layers.items())


def read_texts(
    transformers: Any, name: str, config: Any, texts: list[str]
) -> tuple[list[dict[str, Tensor]], list[Tensor], list[list[str]]]:
    """The batches, which tokens are no padding, and the tokens of every text."""
    for number, text in enumerate(texts, 1):
        if not text:
            raise ValueError(f"inspect: text {number} is empty; give at least one word")
    tokenizer = _load_tokenizer(transformers, name)
    if tokenizer.pad_token is None:
        # padding is masked, so any token will do
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    longest = min(
        limit
        for limit in (tokenizer.model_max_length, getattr(config, "max_position_embeddings", None))
        if isinstance(limit, int) and limit > 0
    )
    ids = tokenizer(texts, verbose=False)["input_ids"]
    for number, words in enumerate(ids, 1):
        if len(words) > longest:
            raise ValueError(
                f"inspect: text {number} has {len(words)} tokens, but {name} reads at most "
                f"{longest}; cut it into shorter lines"
            )
    tokens = [tokenizer.convert_ids_to_tokens(words) for words in ids]
    batches, real = [], []
    for start in range(0, len(texts), BATCH_SIZE):
        batch = tokenizer(texts[start : start + BATCH_SIZE], padding=True, padding_side="right",
                          return_tensors="pt")  # fmt: skip
        batches.append(dict(batch))
        real.append(batch["attention_mask"].bool())
    return batches, real, tokens


def _load_tokenizer(transformers: Any, name: str) -> Any:
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    except Exception as reason:  # it fails in many ways
        tokenizer, why = None, f" ({type(reason).__name__})"
    else:
        why = ""
    # without its files, transformers makes a tokenizer of special tokens only
    if tokenizer is None or not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise ValueError(
            f"inspect: {name} has no tokenizer that can be read{why}; save the tokenizer of the "
            "model into its folder with tokenizer.save_pretrained(folder)"
        )
    return tokenizer
