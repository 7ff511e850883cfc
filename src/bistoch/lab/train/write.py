"""A trained language model writes on."""

from pathlib import Path

import torch

from bistoch.lab.text import SPECIAL, UNKNOWN, Vocabulary
from bistoch.lab.train.running import signs
from bistoch.lab.train.setup import restore_run
from bistoch.models import LanguageModel


def write_on(
    folder: Path, prompt: str, count: int, *, temperature: float = 1.0, seed: int = 0
) -> str:
    """The prompt and so many characters (or bytes) more, drawn by the model in a folder.

    Args:
        folder: of a run of `bistoch train` on running text.
        prompt: how the text begins, at least one character.
        count: how many to add.
        temperature: below 1 prefers the likeliest; 0 always takes it.
        seed: of the draws.
    """
    run = restore_run(folder)
    if not isinstance(run.model, LanguageModel):
        raise ValueError(
            f"generate: a model of running text is needed, but {folder} holds one of "
            f"{run.config['kind']}; train one with: bistoch train --data tiny-shakespeare"
        )
    facts = run.config["facts"]
    is_bytes = facts.get("bytes", False)
    text = signs(prompt, is_bytes)
    if not text:
        raise ValueError("generate: prompt must have at least one character, but it is empty")
    vocabulary = Vocabulary("character", tuple(facts["pieces"]))
    numbers = vocabulary.encode_one(text)
    if (numbers == UNKNOWN).any():
        strange = sorted({sign for sign in text if sign not in vocabulary.numbers})
        raise ValueError(
            f"generate: prompt must be made of the {len(vocabulary.numbers)} characters of the "
            f"training text, but {', '.join(map(repr, strange))} is not among them; leave it out"
        )
    tokens = run.model.generate(
        torch.from_numpy(numbers)[None], count, temperature=temperature,
        # what stands for no character at all
        avoid=range(len(SPECIAL)), generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    written = vocabulary.decode(tokens[0].tolist())
    # a draw may stop inside a character of several bytes
    return written.encode("latin-1", "replace").decode(errors="replace") if is_bytes else written
