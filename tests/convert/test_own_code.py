"""Layers that call scaled_dot_product_attention, however they are written."""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import bistoch
from bistoch.convert import attention_layers, converted_layers
from foreign_layers import (
    ByHelper,
    ByMatrices,
    CausalSelfAttention,
    LikeDiffusers,
    LikeSwin,
    LikeTimm,
    Own,
)

TOKENS = torch.randn(2, 16, 12, generator=torch.Generator().manual_seed(1))
LAYERS = [Own, LikeTimm, LikeSwin, lambda: LikeSwin(shift=1), LikeDiffusers, ByHelper]


def names(layer):
    return getattr(layer, "__name__", "shifted")


@pytest.mark.parametrize("make", LAYERS, ids=names)
def test_softmax_is_the_layer_itself(make):
    layer = make()
    before = layer(TOKENS)
    grads = torch.autograd.grad(before.square().sum(), list(layer.parameters()))
    result = bistoch.convert(layer, "softmax")(TOKENS)
    # the same kernel of torch, unless the layer had another way to compute
    tolerance = {"atol": 2e-6, "rtol": 1e-5} if make not in LAYERS[:2] else {"atol": 0, "rtol": 0}
    torch.testing.assert_close(result, before, **tolerance)
    again = torch.autograd.grad(result.square().sum(), list(layer.parameters()))
    for one, other in zip(grads, again, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    assert torch.equal(bistoch.restore(layer)(TOKENS), before)


@pytest.mark.parametrize("make", LAYERS, ids=names)
def test_balance_is_what_the_operator_computes(make):
    layer = make().double()
    seen = {}
    bistoch.convert(layer, "sinkhorn(iters=300)")
    layer.bistoch.register_forward_hook(
        lambda swap, args, kwargs, result: seen.update(call=(args, kwargs), result=result),
        with_kwargs=True,
    )
    layer(TOKENS.double())
    args, kwargs = seen["call"]
    kwargs = {name: x for name, x in kwargs.items() if name != "dropout_p"}
    plan = layer.bistoch.plan(*args[:2], *args[3:], **kwargs)
    torch.testing.assert_close(plan @ args[2], seen["result"])
    assert (plan.sum(-1) - 1).abs().max() < 1e-9
    assert (plan.sum(-2) - 1).abs().max() < 1e-3
    wanted = bistoch.sinkhorn_plan(*args[:2], mask=kwargs.get("attn_mask"), iters=300)
    torch.testing.assert_close(plan, wanted)


@pytest.mark.parametrize("make", LAYERS, ids=names)
def test_nothing_is_left_after_restore(make):
    layer = make()
    before = copy.deepcopy(vars(layer))
    kind, words = type(layer), list(layer.state_dict())
    bistoch.convert(layer, "elastic(learn='head')")
    assert type(layer) is not kind
    assert isinstance(layer, kind)
    bistoch.restore(layer)
    assert type(layer) is kind
    assert list(layer.state_dict()) == words
    assert vars(layer).keys() == before.keys()
    assert layer._modules.keys() == before["_modules"].keys()


def test_the_name_is_a_function_and_a_place():
    assert list(inspect.signature(bistoch.convert).parameters)[:3] == [
        "model",
        "operator",
        "layers",
    ]
    assert {"convert", "restore"} <= set(dir(bistoch))
    assert {"save", "load", "record", "apply", "attention_layers"} <= set(dir(bistoch.convert))


def test_other_modules_and_torch_do_not_feel_it():
    q = torch.randn(2, 3, 5, 4)
    function = scaled_dot_product_attention
    before = function(q, q, q)
    converted, plain = Own(), Own()
    plain.load_state_dict(converted.state_dict())
    wanted = plain(TOKENS)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.converted = bistoch.convert(converted, "sinkhorn")
            self.plain = plain

        def forward(self, x):
            return self.converted(x), self.plain(x)

    ours, theirs = Both()(TOKENS)
    assert torch.equal(theirs, wanted)
    assert not torch.allclose(ours, wanted)
    assert torch.equal(torch.nn.functional.scaled_dot_product_attention(q, q, q), before)
    assert torch.nn.functional.scaled_dot_product_attention is function


@pytest.mark.parametrize("operator", ["elastic(lam=0.5)", "elastic(learn='head')", "sink"])
def test_chosen_heads(operator):
    layer = Own(dim=20, heads=5).double()
    x = torch.randn(2, 7, 20).double()
    bistoch.convert(layer, operator, heads=[3, 1])
    assert layer.bistoch.heads == [1, 3]
    q, k, v = torch.randn(3, 2, 5, 7, 4).double().unbind()
    mask = torch.randn(2, 5, 7, 7).double()
    both = layer.bistoch(q, k, v, mask)
    whole = bistoch.nn.build_operator(operator, heads=2)
    for head in range(5):
        alone = (q[:, head], k[:, head], v[:, head])
        wanted = scaled_dot_product_attention(*alone, mask[:, head])
        if head in (1, 3) and "learn" not in operator:
            wanted = whole(*alone, mask=mask[:, head])
        torch.testing.assert_close(both[:, head], wanted)
    assert layer(x).shape == x.shape


def test_lam_of_chosen_heads_in_any_order():
    layer = bistoch.convert(Own(), "elastic", heads=[2, 0], lam=[0.75, 0.25])
    assert layer.bistoch.heads == [0, 2]
    assert layer.bistoch.operator.lam.tolist() == [0.25, 0.75]


def test_layers_by_number_and_by_name():
    model = nn.ModuleDict({"left": nn.ModuleList([Own(), Own()]), "right": Own()})
    assert list(attention_layers(model)) == ["left.0", "left.1", "right"]
    bistoch.convert(model, "sinkhorn", layers=["left"])
    assert list(converted_layers(model)) == ["left.0", "left.1"]
    bistoch.restore(model)
    bistoch.convert(model, "elastic", lam={1: 0.5, 2: [0.0, 0.5, 1.0]})
    assert list(converted_layers(model)) == ["left.1", "right"]
    bistoch.restore(model)
    bistoch.convert(model, "sinkhorn", heads={0: [1], 2: [0, 2]})
    assert model["left"][0].bistoch.heads == [1]
    assert model["right"].bistoch.heads == [0, 2]
    with pytest.raises(ValueError, match="there is no layer 'centre' in ModuleDict; its 3"):
        bistoch.convert(model, "softmax", layers=["centre"])


def test_a_second_convert_takes_the_place_of_the_first():
    layer = Own()
    before = layer(TOKENS)
    bistoch.convert(layer, "sinkhorn")
    bistoch.convert(layer, "softmax")
    assert torch.equal(layer(TOKENS), before)
    assert type(bistoch.restore(layer)) is Own


def test_a_wrong_call_of_convert_touches_nothing():
    model = nn.ModuleList([Own(), CausalSelfAttention()])
    with pytest.raises(ValueError, match=r"layer 1 \(1\) of ModuleList, whose queries must not"):
        bistoch.convert(model, "sinkhorn")
    assert not converted_layers(model)


# arguments of scaled_dot_product_attention


def test_masks_mean_what_they_mean_to_torch():
    layer, x = Own().double(), torch.randn(2, 7, 12).double()
    allowed = torch.rand(2, 1, 7, 7) > 0.3
    allowed |= torch.eye(7, dtype=torch.bool)
    for mask in (allowed, torch.randn(7, 7).double(), torch.randn(2, 3, 7, 7).double()):
        bistoch.restore(layer)
        before = layer(x, attn_mask=mask)
        torch.testing.assert_close(bistoch.convert(layer, "softmax")(x, attn_mask=mask), before)
        bistoch.convert(layer, "elastic(lam=0.0)")
        torch.testing.assert_close(layer(x, attn_mask=mask), before)


@pytest.mark.parametrize("low", [None, -1e4, -1e9, -torch.inf])
def test_padding_is_invisible(low):
    real = torch.arange(7) < torch.tensor([[7], [4]])
    mask = real[:, None, None, :]
    if low is not None:
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, low)
    layer, x = Own().double(), torch.randn(2, 7, 12).double()
    bistoch.convert(layer, "sinkhorn")
    padded, alone = layer(x, attn_mask=mask), layer(x[1:, :4])
    torch.testing.assert_close(padded[1:, :4], alone)


def test_padding_of_cross_attention_leaves_the_queries():
    class CrossAttention(Own):
        pass

    layer = bistoch.convert(CrossAttention().double(), "sinkhorn")
    x, memory = torch.randn(2, 2, 7, 12).double().unbind()
    real = torch.arange(7) < torch.tensor([[7], [4]])
    padded = layer(x, memory, attn_mask=real[:, None, None, :])
    torch.testing.assert_close(padded[1], layer(x[1:], memory[1:, :4])[0])


def test_grouped_queries():
    layer, x = Own(dim=24, heads=6, groups=2).double(), torch.randn(2, 7, 24).double()
    before = layer(x, enable_gqa=True)
    torch.testing.assert_close(bistoch.convert(layer, "softmax")(x, enable_gqa=True), before)
    bistoch.convert(layer, "elastic(learn='head')", heads=[0, 5])
    torch.testing.assert_close(layer(x, enable_gqa=True), before)
    with torch.no_grad():
        layer.bistoch.operator.lam.fill_(1.0)
    assert not torch.allclose(layer(x, enable_gqa=True), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_scale_of_a_call(dtype):
    layer, x = Own().to(dtype), torch.randn(2, 7, 12).to(dtype)
    before = layer(x, scale=0.7)
    bistoch.convert(layer, "softmax")
    # half precision of torch's kernel rounds the scaled scores, ours does not
    torch.testing.assert_close(layer(x, scale=0.7), before, atol=2e-2, rtol=2e-2)
    q, k, v = torch.randn(3, 2, 3, 7, 4, dtype=torch.float64).unbind()
    swap = bistoch.convert(Own().double(), "elastic(lam=0.5)").bistoch
    wanted = bistoch.elastic_attention(q, k, v, lam=0.5, scale=0.7)
    torch.testing.assert_close(swap(q, k, v, scale=0.7), wanted)


def test_dropout_keeps_the_mean_and_acts_in_training_only():
    q, k, v = torch.randn(3, 1, 3, 5, 4).unbind()
    swap = bistoch.convert(Own(), "sinkhorn").bistoch
    whole = swap(q, k, v)
    dropped = torch.stack([swap(q, k, v, dropout_p=0.5) for _ in range(500)])
    assert ((dropped == 0) | torch.isclose(dropped, 2 * whole)).all()
    torch.testing.assert_close(dropped.mean(0), whole, atol=0.4, rtol=0)
    layer = bistoch.convert(LikeTimm(attn_drop=0.5), "sinkhorn")
    assert not torch.equal(layer(TOKENS), layer(TOKENS))
    assert torch.equal(layer.eval()(TOKENS), layer(TOKENS))


def test_tokens_without_an_axis_of_heads():
    swap = bistoch.convert(Own(), "elastic(lam=0.5)").bistoch
    q, k, v = torch.randn(3, 6, 5, 4).unbind()
    torch.testing.assert_close(swap(q, k, v), bistoch.elastic_attention(q, k, v, lam=0.5))
    swap = bistoch.convert(Own(), lam=0.5).bistoch
    with pytest.raises(ValueError, match=r"has 3 heads, but .*\(6, 5, 4\), whose axis -3 has 6"):
        swap(q, k, v)


# what is refused


@pytest.mark.parametrize("operator", ["elastic(lam=0.5)", "sinkhorn", "hard"])
def test_balance_does_not_see_the_future(operator):
    with pytest.raises(ValueError, match="whose queries must not know of later ones"):
        bistoch.convert(CausalSelfAttention(), operator)
    layer = bistoch.convert(Own(), operator)
    with pytest.raises(ValueError, match="a balanced column sums over the future"):
        layer(TOKENS, is_causal=True)
    past = torch.ones(16, 16, dtype=torch.bool).tril()
    for mask in (past, torch.zeros(16, 16).masked_fill(~past, -torch.inf)):
        with pytest.raises(ValueError, match="use softmax or causal_elastic"):
            layer(TOKENS, attn_mask=mask)


def test_causal_balance_and_masks_that_say_the_same():
    layer = bistoch.convert(Own().double(), "causal_elastic(lam=0.5, block=4)")
    x = torch.randn(2, 9, 12).double()
    result = layer(x, is_causal=True)
    past = torch.ones(9, 9, dtype=torch.bool).tril()
    torch.testing.assert_close(layer(x, attn_mask=past), result)
    bias = torch.zeros(9, 9).double().masked_fill(~past, -torch.inf)
    torch.testing.assert_close(layer(x, attn_mask=bias), result)
    bistoch.testing.assert_causal(lambda tokens: layer(tokens, is_causal=True), x)
    with pytest.raises(NotImplementedError, match="needs all rows at once, but there are 1 quer"):
        layer(x[:, -1:], x)


def test_row_wise_operators_take_causal_masks():
    x = torch.randn(2, 9, 12)
    layer = CausalSelfAttention()
    before = layer(x)
    torch.testing.assert_close(bistoch.convert(layer, "softmax")(x), before, atol=1e-6, rtol=1e-5)
    bistoch.convert(layer, "sparsemax", heads=[1])
    bistoch.testing.assert_causal(layer, x)


def test_sentences():
    with pytest.raises(NotImplementedError, match="ByMatrices has no attention layer that can be"):
        bistoch.convert(ByMatrices())
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module, but it is a function"):
        bistoch.convert(names)
    with pytest.raises(ValueError, match="sets scale, but a model sets the scale"):
        bistoch.convert(Own(), "elastic(scale=1.0)")
    with pytest.raises(ValueError, match="lam is given twice"):
        bistoch.convert(Own(), "elastic(lam=0.5)", lam=0.5)
    with pytest.raises(ValueError, match="must be different numbers from 0 to 2"):
        bistoch.convert(Own(), "softmax", heads=[3])
    layer = Own()
    del layer.num_heads
    with pytest.raises(ValueError, match="does not say how many heads it has; set the attribute"):
        bistoch.convert(layer)
    layer = Own()
    layer.forward = layer.forward
    with pytest.raises(NotImplementedError, match="was replaced in this object"):
        bistoch.convert(layer)
    layer = bistoch.convert(Own(), "sinkhorn")
    with pytest.raises(ValueError, match="is_causal=True and attn_mask exclude each other"):
        layer(TOKENS, attn_mask=torch.ones(16, 16, dtype=torch.bool), is_causal=True)


def test_a_layer_that_did_not_attend_says_so():
    class Sometimes(Own):
        def forward(self, x, really=True):
            return super().forward(x) if really else x

    layer = bistoch.convert(Sometimes(), "sinkhorn")
    assert layer(TOKENS).shape == TOKENS.shape
    with pytest.raises(RuntimeError, match="did not call scaled_dot_product_attention"):
        layer(TOKENS, really=False)


def test_one_query_is_worth_a_warning():
    layer, x = bistoch.convert(Own(), "sinkhorn"), torch.randn(2, 7, 12)
    with pytest.warns(UserWarning, match="has one query, and sinkhorn draws its row towards the m"):
        layer(x[:, :1], x)
    bistoch.convert(layer, "softmax")(x[:, :1], x)


def test_layers_that_attend_twice():
    class Twice(Own):
        def forward(self, x):
            return super().forward(super().forward(x))

    layer = Twice()
    before = layer(TOKENS)
    assert torch.equal(bistoch.convert(layer, "softmax")(TOKENS), before)
