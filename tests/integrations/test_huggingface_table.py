"""Every operator in every kind of model: either it is refused at once, or every call works."""

import pytest
import torch

import bistoch
from bistoch.integrations.huggingface import attention_layers, convert

LENGTH = 11
REAL = torch.tensor([11, 7, 3])
DELTA = "delta(window=3, sink=1, stride=2)"
MODELS = ("bert", "gpt2", "llama", "t5", "t5 encoder", "vit")


def inputs(name, *, padded, left=False):
    if name == "vit":
        return {"pixel_values": torch.randn(3, 3, 30, 30)}
    words = {"input_ids": torch.randint(3, 101, (3, LENGTH))}
    if padded:
        place = torch.arange(LENGTH)
        real = place >= LENGTH - REAL[:, None] if left else place < REAL[:, None]
        words["attention_mask"] = real.long()
    if name == "t5":
        # as many as there are words: nothing may take them for the same tokens
        words["decoder_input_ids"] = torch.randint(3, 101, (3, LENGTH))
    return words


def options_of(name):
    return {"use_cache": False} if name in ("gpt2", "llama", "t5") else {}


@pytest.mark.parametrize("operator", bistoch.OPERATORS)
@pytest.mark.parametrize("name", MODELS)
def test_an_operator_is_refused_at_once_or_works(build, name, operator):
    model = build(name.split()[0])
    model = model.encoder if name == "t5 encoder" else model
    refusal = None
    try:
        convert(model, operator)
    except ValueError as error:
        refusal = str(error)
    if refusal is not None:
        assert refusal.startswith(f"convert: {operator} may not be used in layer")
        assert "; use " in refusal or "layers=" in refusal
        return
    for padded in (False, True):
        for options in ({}, options_of(name)):
            with torch.no_grad():
                result = model(**inputs(name, padded=padded), **options)[0]
            assert result.isfinite().all()


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("heads", [None, [1, 2]], ids=["all heads", "some heads"])
@pytest.mark.parametrize(
    "operator", ["delta(window=3, sink=1, stride=2)", "causal_elastic(block=4)"]
)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_causal_operator_in_a_language_model(build, name, operator, heads, left):
    model, words = convert(build(name), operator, heads=heads), inputs(name, padded=True, left=left)
    words["position_ids"] = (words["attention_mask"].cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        together = model(**words, use_cache=False)[0]
        later = {k: v.clone() for k, v in words.items()}
        later["input_ids"][:, 8:] = 5
        changed = model(**later, use_cache=False)[0]
    # no earlier token knows of a later one
    torch.testing.assert_close(changed[:, :8], together[:, :8], atol=0, rtol=0)
    # and no real one of padding
    for row, length in enumerate(REAL.tolist()):
        some = slice(LENGTH - length, None) if left else slice(0, length)
        with torch.no_grad():
            alone = model(words["input_ids"][row : row + 1, some], use_cache=False)[0]
        torch.testing.assert_close(together[row, some], alone[0], atol=1e-4, rtol=1e-4)


def test_delta_in_a_model_is_the_function(build):
    model = build("gpt2")
    layer = next(iter(attention_layers(model).values()))
    seen = {}
    convert(model, DELTA)
    layer.bistoch.register_forward_hook(
        lambda module, args, kwargs, result: seen.update(tokens=args, masks=kwargs, result=result),
        with_kwargs=True,
    )
    with torch.no_grad():
        model(**inputs("gpt2", padded=False))
    wanted = bistoch.delta_attention(*seen["tokens"], window=3, sink=1, stride=2)
    torch.testing.assert_close(seen["result"], wanted)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_decoding_goes_on_from_a_delta_prefill(build, name, cache):
    model, words = build(name).double(), inputs(name, padded=True, left=True)
    asked = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = model.generate(**words, **asked)
    # a prefill in which nothing is left out, and all keys after it: the model itself
    convert(model, "delta(window=40)")
    assert torch.equal(model.generate(**words, **asked, cache_implementation=cache), expected)
    # with every row alone, sparse rows after a sparse prefill are those of one call
    convert(model, "delta(window=3, sink=1, correction='none', decode='sparse')")
    sparse = model.generate(**words, **asked, cache_implementation=cache)
    assert torch.equal(model.generate(**words, **asked, use_cache=False), sparse)
    # layers of the tiny GPT-2 are hardly felt beside its embeddings
    assert name == "gpt2" or not torch.equal(sparse, expected)
    convert(model, "delta(window=3, sink=1, correction='none', decode='sparse')", heads=[1])
    some = model.generate(**words, **asked, cache_implementation=cache)
    assert torch.equal(model.generate(**words, **asked, use_cache=False), some)


def test_padded_keys_of_other_tokens_are_no_padded_queries(build):
    # one class serves self- and cross-attention in T5, and here both have as many tokens
    model = convert(build("t5"), "mixing", layers=["decoder"])
    seen = {}
    for name, layer in attention_layers(model).items():
        if name.startswith("decoder"):
            layer.bistoch.register_forward_hook(
                lambda module, args, kwargs, _, name=name: seen.update({name: kwargs}),
                with_kwargs=True,
            )
    with torch.no_grad():
        model(**inputs("t5", padded=True))
    crossed = {name: masks for name, masks in seen.items() if "EncDec" in name}
    assert crossed
    assert all(masks["query_mask"].all() for masks in crossed.values())
    assert all(masks["key_mask"] is not None for masks in crossed.values())


@pytest.mark.parametrize("argument", ["model", "operator", "layers", "heads", "lam"])
def test_a_wrong_argument_of_convert(build, argument):
    wrong = {
        "model": [None, "bert", torch.nn.Linear(2, 2), 3],
        "operator": [None, 3, "nonsense", "elastic(", ["elastic"], "elastic(scale=1.0)"],
        "layers": [3, "encoder", [99], [None], [0.5], [], [True]],
        "heads": [3, "ab", [99], [-1], [0.5], [], [True], [0, 0], {0: [99]}, {99: [0]}, {0: "ab"}],
        "lam": ["half", [2.0] * 4, float("nan"), [[0.5]], [0.5] * 3, {0: "half"}, {99: 0.5}, True],
    }[argument]
    silent = []
    for value in wrong:
        model = build("bert")
        given = {"model": model, argument: value}
        try:
            convert(**given)
            found = "accepted"
        except (TypeError, ValueError, NotImplementedError) as error:
            found = f"{type(error).__name__}: {error}"
        begins = ("convert: ", "operator: ", "attention_layers: ")
        if not found.partition(": ")[2].startswith(begins):
            silent.append(f"{argument}={value!r}: {found}")
        # nothing was touched
        assert not hasattr(model.config, "bistoch")
    assert not silent, "\n".join(["", *silent])
