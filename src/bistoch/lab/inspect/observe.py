"""The plans and states of a model on a batch: of transformers, or of a run of `bistoch train`."""

from typing import Any

import torch

from bistoch.lab.inspect.own import observe_run
from bistoch.lab.inspect.subject import Seen, Subject


@torch.no_grad()
def observe(subject: Subject, batch: Any) -> Seen:
    """Run the model once and return what its layers did."""
    if subject.own:
        return observe_run(subject, batch)
    found = subject.model(**batch, output_attentions=True, output_hidden_states=True)
    kept = [layer for layer in found.attentions or () if layer is not None]
    if not kept:
        raise ValueError(f"inspect: {subject.name} does not show the plans of its attention")
    tokens, given = kept[0].shape[-1], found.hidden_states[0].shape[1]
    if any(layer.ndim != 4 or layer.shape[-2:] != (tokens, tokens) for layer in kept) or (
        tokens != given
    ):
        raise ValueError(
            f"inspect: the layers of {subject.name} see different tokens (windows, pools or "
            f"registers), plans of {tuple(kept[0].shape[-2:])} for {given} tokens; only "
            "models in which all layers see the same tokens are shown"
        )
    plans, states = ([x.cpu() for x in some] for some in (kept, found.hidden_states))
    return Seen(plans, states, [str(place) for place in range(len(kept))])
