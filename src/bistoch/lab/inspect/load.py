"""A model and what it is asked to read, loaded; every mistake on the way is one sentence."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bistoch.lab.inspect import pictures_in
from bistoch.lab.train.run import is_run

# what a file of pictures may be called
IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff"}
# texts that go through the model at a time; plans of all heads are kept
AT_ONCE = 16


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode, and what it reads.

    `samples` are the texts or the names of the images, `batches` what the model is called with,
    `tokens` the words of every sample, `real` says which tokens of a batch are no padding.
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
        texts: for models that read.
        images: files, or folders of them, for models that see.
    """
    if bool(texts) == bool(images):
        raise ValueError("inspect: give the model something to read, with --text or --file, "
                         "or something to see, with --images; one of the two")  # fmt: skip
    transformers = import_transformers()
    with _quiet(transformers):
        config = _read_config(transformers, name)
        model, causal, notes = _load_model(transformers, name, config)
        sees = model.main_input_name == "pixel_values"
        if sees != bool(images):
            given, wanted = ("--images", "--text or --file") if images else ("--text", "--images")
            does = "sees" if sees else "reads"
            raise ValueError(f"inspect: {name} {does}, so give it {wanted} instead of {given}")
        if sees:
            files = pictures_in.find(images, IMAGES)
            batches, tokens, note = pictures_in.read(transformers, name, config, files, AT_ONCE)
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
    # what it says while loading is about its own insides
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
    """The model, whether it hides the future, and what the reader should know."""
    from bistoch.integrations import huggingface

    architecture = (getattr(config, "architectures", None) or [""])[0]
    writes = architecture.endswith(("ForCausalLM", "LMHeadModel"))
    kind = transformers.AutoModelForCausalLM if writes else transformers.AutoModel
    try:
        # the eager code is the one that shows its plans
        model = huggingface.from_pretrained(kind, name, attn_implementation="eager").eval()
    except (OSError, ValueError, KeyError) as reason:
        first = str(reason).strip().splitlines()[0][:200]
        raise ValueError(f"inspect: cannot load the model {name!r}: {first}") from None
    notes = []
    if getattr(config, "is_encoder_decoder", False):
        model = model.get_encoder()
        notes.append(
            "This model reads with an encoder and writes with a decoder; the encoder is shown."
        )
    return model, _hides_the_future(model), notes


def _hides_the_future(model: Any) -> bool:
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
    """What the model is called with, which tokens are no padding, and the tokens of every text."""
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
    for start in range(0, len(texts), AT_ONCE):
        batch = tokenizer(texts[start : start + AT_ONCE], padding=True, padding_side="right",
                          return_tensors="pt")  # fmt: skip
        batches.append(dict(batch))
        real.append(batch["attention_mask"].bool())
    return batches, real, tokens


def _load_tokenizer(transformers: Any, name: str) -> Any:
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    except Exception as reason:  # it has many ways to fail, all of which mean the same here
        tokenizer, why = None, f" ({type(reason).__name__})"
    else:
        why = ""
    # of missing files, transformers makes a tokenizer that knows its special tokens only
    if tokenizer is None or not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise ValueError(
            f"inspect: {name} has no tokenizer that can be read{why}; save the tokenizer of the "
            "model into its folder with tokenizer.save_pretrained(folder)"
        )
    return tokenizer
