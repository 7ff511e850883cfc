"""Text from a trained language model."""

from pathlib import Path

import torch

from bistoch.lab.device import CPU
from bistoch.lab.text import SPECIAL, UNKNOWN, Vocabulary
from bistoch.lab.train.run import restore_run
from bistoch.lab.train.sequences import characters
from bistoch.models import LanguageModel


def generate_text(
    folder: Path,
    prompt: str,
    count: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    device: torch.device = CPU,
) -> str:
    """The prompt and `count` generated characters (or bytes).

    Args:
        folder: of a run of `bistoch train` on a corpus.
        prompt: the beginning of the text, at least one character.
        count: how many to add.
        temperature: of sampling; 0 always takes the most likely character.
        seed: of sampling.
        device: where the model runs.
    """
    run = restore_run(folder, device)
    if not isinstance(run.model, LanguageModel):
        raise ValueError(
            f"generate: a language model is needed, but {folder} holds a model of "
            f"{run.config['kind']}; train one with: bistoch train --data tiny-shakespeare"
        )
    facts = run.config["facts"]
    is_bytes = facts.get("bytes", False)
    text = characters(prompt, is_bytes)
    if not text:
        raise ValueError("generate: prompt must have at least one character, but it is empty")
    vocabulary = Vocabulary("character", tuple(facts["tokens"]))
    ids = vocabulary.encode_one(text)
    if (ids == UNKNOWN).any():
        unknown = sorted(set(text) - vocabulary.ids.keys())
        raise ValueError(
            f"generate: prompt must be made of the {len(vocabulary.ids)} characters of the "
            f"training text, but {', '.join(map(repr, unknown))} is not among them; leave it out"
        )
    tokens = run.model.generate(
        torch.from_numpy(ids)[None].to(device), count, temperature=temperature,
        # padding and unknown are no characters
        avoid=range(len(SPECIAL)), generator=torch.Generator(device).manual_seed(seed),
    )  # fmt: skip
    written = vocabulary.decode(tokens[0].tolist())
    # the last character of several bytes may be incomplete
    return written.encode("latin-1", "replace").decode(errors="replace") if is_bytes else written
