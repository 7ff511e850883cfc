"""Load a model of transformers with its inputs; every error is one sentence."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bistoch.lab.device import CPU
from bistoch.lab.inspect.images import find_images, read_images
from bistoch.lab.inspect.own import load_run
from bistoch.lab.inspect.subject import BATCH_SIZE, Subject
from bistoch.lab.train.checkpoint import CheckpointError
from bistoch.lab.train.loop import CHECKPOINT
from bistoch.lab.train.run import is_run

# fields of a config that say how large a model is, and what it reads
OPTIONS = (
    "model_type", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size",
    "intermediate_size", "hidden_act", "vocab_size", "max_position_embeddings", "image_size",
    "patch_size",
)  # fmt: skip


def load_subject(
    name: str,
    texts: Sequence[str] = (),
    images: Sequence[Path] = (),
    device: torch.device = CPU,
) -> Subject:
    """Load a model, from a folder or the hub, with texts or images to look at.

    Args:
        name: a folder with a `config.json`, the name of a model on the hub, or a run of `bistoch
            train`: its folder or the checkpoint in it.
        texts: for text models.
        images: files, or folders of them, for image models. A run without either is shown on test
            samples of its own data.
        device: where the model runs.
    """
    path = Path(name)
    if path.name == CHECKPOINT and path.is_file():
        path = path.parent
    if is_run(path):
        return load_run(path, texts, images, device)
    if path.is_file():
        raise CheckpointError(
            f"inspect: {name} is a file; give the folder of a model of transformers, or that of a "
            f"run of `bistoch train`, with config.json beside its {CHECKPOINT}"
        )
    if bool(texts) == bool(images):
        raise ValueError(
            "inspect: give the model texts, with --text or --file, or images, with --images; one "
            "of the two (only a run of `bistoch train` has samples of its own)"
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
    model = model.to(device)
    batches = [{key: x.to(device) for key, x in batch.items()} for batch in batches]
    options = {key: getattr(config, key) for key in OPTIONS if getattr(config, key, None)}
    about = f"{type(model).__name__}, {config.model_type}"
    score = (lambda: {"loss": loss_of(model, batches, real)}) if causal else None
    return Subject(
        name, model, causal, samples, batches, real, tokens, notes, options, about, score=score
    )


@torch.no_grad()
def loss_of(model: Any, batches: Sequence[Any], real: Sequence[Tensor]) -> float:
    """The mean loss per predicted token of a causal model, in nats."""
    total, count = 0.0, 0
    for batch, known in zip(batches, real, strict=True):
        logits = model(**batch).logits[:, :-1]
        hidden = ~known[:, 1:].to(logits.device)
        wanted = batch["input_ids"][:, 1:].masked_fill(hidden, -100)
        total += cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum").item()
        count += int(known[:, 1:].sum())
    return total / max(count, 1)


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
