"""The vision Transformer that comes with the package, with ten pictures of clothes."""

import functools
import json
from collections.abc import Sequence
from importlib.resources import as_file, files
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from bistoch.explorer.link import pack_pixels, unpack_pixels
from bistoch.explorer.state import State
from bistoch.explorer.subject import Sample, Subject, operator_text, places
from bistoch.integrations.huggingface.swapped import Swapped
from bistoch.models import ViT, build_model
from bistoch.nn import Softmax, build_operator

SIDE = 28


class Trained(NamedTuple):
    """A trained model in evaluation mode, pictures it was not trained on, and its classes."""

    model: ViT
    pictures: UInt8[Tensor, "10 28 28"]
    classes: list[str]


def load_vit() -> Trained:
    """The vision Transformer of the explorer, trained with softmax on a part of FashionMNIST.

    >>> model, pictures, classes = load_vit()
    >>> with torch.no_grad():
    ...     scores = model(pictures / 127.5 - 1)
    >>> classes[scores[1].argmax()]
    'Trouser'
    """
    safetensors = _import_safetensors()
    with (
        as_file(files("bistoch.explorer") / "data" / "vit.safetensors") as path,
        safetensors.safe_open(path, "pt") as file,
    ):
        about = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    pictures, classes = tensors.pop("pictures"), json.loads(about["classes"])
    model: Any = build_model(about["model"], image=(SIDE, SIDE), classes=len(classes))
    model.load_state_dict({name: x.float() for name, x in tensors.items()})
    return Trained(model.eval(), pictures, classes)


def swap(
    model: ViT, operator: str, layers: Sequence[int], heads: Sequence[int] | None = None
) -> ViT:
    """Put an operator into some heads of some layers of the model, in place; "softmax" ends it.

    Args:
        model: of `load_vit`.
        operator: a text such as "elastic(lam=0.5)".
        layers: the numbers of the blocks.
        heads: which heads; the others stay with softmax. By default all.

    >>> model = swap(load_vit().model, "elastic(lam=0.5)", layers=[1], heads=[0, 2])
    >>> model.blocks[1].attention.operator
    Swapped(
      heads=[0, 2] of 4
      (operator): elastic(lam=0.5)
    )
    """
    for number in layers:
        attention: Any = model.blocks[number].attention
        size = attention.query.out_features // attention.heads
        count = attention.heads if heads is None else len(heads)
        made = build_operator(operator, count, size).to(attention.query.weight.device)
        attention.operator = made if heads is None else Swapped(made, heads, attention.heads, None)
    return model


class VitSubject(Subject):
    """The model of `load_vit` on its pictures, or on one of the user's."""

    name = "vit"
    title = "Vision Transformer, clothes"
    takes: ClassVar[Literal["text", "picture"]] = "picture"
    output_is = "probability of the class"

    def __init__(self) -> None:
        super().__init__()
        self.model, self.pictures, self.classes = load_vit()
        config = self.model.config
        self.heads = [config.heads] * config.depth
        self.grid = config.grid

    def example(self) -> State:
        """A boot."""
        return State(self.name, picture="9")

    def describe(self, token: str) -> str:
        """A token in a sentence."""
        if ":" not in token:
            return "the class token"
        row, column = token.split(":")
        return f"the patch in row {row}, column {column}"

    def check_picture(self, word: str) -> None:
        """Refuse what is neither the number of an example nor a packed picture."""
        self.pixels(word)

    @functools.lru_cache(maxsize=32)  # noqa: B019 (there is one subject, and it stays)
    def pixels(self, picture: str) -> UInt8[Tensor, "28 28"]:
        """The grey values of an example, by its number, or of a packed picture."""
        if picture.isdecimal():
            if int(picture) >= len(self.pictures):
                raise ValueError(
                    f"picture must be a number from 0 to {len(self.pictures) - 1}, or a picture as "
                    f"a link of this page holds it, but it is {picture!r}"
                )
            return self.pictures[int(picture)]
        values = unpack_pixels(picture, SIDE * SIDE)
        return torch.frombuffer(bytearray(values), dtype=torch.uint8).reshape(SIDE, SIDE)

    def read(self, state: State) -> Sample:
        """The picture, its tokens named by row and column; the class token comes first."""
        rows, columns = self.grid
        names = [f"{row + 1}:{column + 1}" for row in range(rows) for column in range(columns)]
        images = self.pixels(state.picture)[None] / 127.5 - 1
        return Sample(["[class]", *names], {"images": images})

    def put(self, operator: str, layers: Sequence[int], heads: Sequence[int] | None) -> None:
        """Put an operator into some heads."""
        swap(self.model, operator, layers, heads)

    def restore(self) -> None:
        """Softmax everywhere, as it was trained."""
        for block in self.model.blocks:
            block.attention.operator = Softmax()

    def compute(self, sample: Sample) -> dict[str, float]:
        """The probabilities of the classes."""
        probabilities = self.model(**sample.arguments)[0].softmax(-1)
        return dict(zip(self.classes, probabilities.tolist(), strict=True))

    def lines(self, state: State) -> list[str]:
        """Python that does the same."""
        layers, heads = places(state, len(self.heads))
        chosen = f"layers={list(layers)}" + ("" if heads is None else f", heads={list(heads)}")
        if state.picture.isdecimal():
            more, picture = [], [f"picture = pictures[{state.picture}]"]
        else:
            packed = pack_pixels(self.pixels(state.picture).numpy().tobytes())
            more = ["from bistoch.explorer.link import unpack_pixels"]
            picture = [
                f'packed = "{packed}"',
                f"pixels = bytearray(unpack_pixels(packed, {SIDE} * {SIDE}))",
                f"picture = torch.frombuffer(pixels, dtype=torch.uint8).reshape({SIDE}, {SIDE})",
            ]
        return [
            "import torch",
            "from bistoch.analysis import capture, metrics",
            "from bistoch.explorer import load_vit, swap",
            *more,
            "",
            "model, pictures, classes = load_vit()",
            *picture,
            f'swap(model, "{operator_text(state)}", {chosen})',
            "with torch.no_grad(), capture(model, problems=1, states=None) as seen:",
            "    scores = model(picture[None] / 127.5 - 1)",
            f"plan = seen.plans[{state.layer}].plan[0, {state.head}]",
            "output = dict(zip(classes, scores[0].softmax(-1).tolist()))",
        ]


def _import_safetensors() -> Any:
    try:
        import safetensors
    except ImportError:
        raise ImportError(
            'explore needs safetensors; install it with: pip install "bistoch[explore]"'
        ) from None
    return safetensors
