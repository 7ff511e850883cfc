"""nn.MultiheadAttention with every argument, and the layers of torch that hold it."""

import itertools

import pytest
import torch
from torch import nn

import bistoch

TOKENS = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(1))
MEMORY = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(2))
PADDING = torch.arange(7) >= torch.tensor([[7], [4]])

MAKES = [
    {},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"batch_first": False},
]


def build(dropout=0.0, **options):
    return nn.MultiheadAttention(12, 3, dropout, **{"batch_first": True, **options}).double()


@pytest.mark.parametrize("options", MAKES, ids=str)
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("masks", ["none", "pairs", "heads", "padding", "both"])
def test_softmax_is_the_layer_itself(options, need_weights, masks):
    layer, x = build(**options), TOKENS.double()
    x = x if layer.batch_first else x.transpose(0, 1)
    pairs = torch.rand(7, 7) > 0.7
    pairs &= ~torch.eye(7, dtype=torch.bool)
    call = {"need_weights": need_weights, "average_attn_weights": False}
    if masks in ("pairs", "both"):
        call["attn_mask"] = pairs
    if masks == "heads":
        call["attn_mask"] = torch.randn(6, 7, 7).double()
    if masks in ("padding", "both"):
        call["key_padding_mask"] = PADDING
    before = layer(x, x, x, **call)
    after = bistoch.convert(layer, "softmax")(x, x, x, **call)
    for one, other in zip(before, after, strict=True):
        if one is None:
            assert other is None
        else:
            torch.testing.assert_close(other, one)
    restored = bistoch.restore(layer)(x, x, x, **call)
    assert torch.equal(restored[0], before[0])


@pytest.mark.parametrize("options", [*MAKES[:5], {"kdim": 10, "vdim": 9}], ids=str)
def test_cross_attention(options):
    layer, x = build(**options), TOKENS.double()
    key, value = (torch.randn(2, 5, options.get(name, 12)).double() for name in ("kdim", "vdim"))
    before = layer(x, key, value)
    after = bistoch.convert(layer, "softmax")(x, key, value)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(other, one)
    bistoch.convert(layer, "sinkhorn(iters=500)")
    result, plan = layer(x, key, value, average_attn_weights=False)
    assert (plan.sum(-1) - 1).abs().max() < 1e-9
    # every key receives an equal share, those that the layer adds too
    assert (plan.sum(-2) - 7 / plan.shape[-1]).abs().max() < 1e-4
    quick, none = layer(x, key, value, need_weights=False)
    assert none is None
    torch.testing.assert_close(quick, result)


def test_without_weights_softmax_is_the_same_bit_by_bit():
    layer = nn.MultiheadAttention(12, 3, batch_first=True)
    before = layer(TOKENS, TOKENS, TOKENS, need_weights=False)[0]
    bistoch.convert(layer, "softmax")
    assert torch.equal(layer(TOKENS, TOKENS, TOKENS, need_weights=False)[0], before)


@pytest.mark.parametrize("float_mask", [False, True])
def test_padded_keys_are_padded_queries(float_mask):
    layer, x = bistoch.convert(build(), "sinkhorn"), TOKENS.double()
    padding = torch.zeros(2, 7).double().masked_fill(PADDING, -torch.inf) if float_mask else PADDING
    padded, plan = layer(x, x, x, key_padding_mask=padding)
    alone, wanted = layer(x[1:, :4], x[1:, :4], x[1:, :4])
    torch.testing.assert_close(padded[1:, :4], alone)
    torch.testing.assert_close(plan[1:, :4, :4], wanted)
    assert plan[1, :, 4:].eq(0).all()
    # between other tokens, all queries are real, however many there are
    other = torch.randn(2, 7, 12).double()
    crossed, _ = layer(x, other, other, key_padding_mask=padding)
    alone, _ = layer(x[1:], other[1:, :4], other[1:, :4])
    torch.testing.assert_close(crossed[1:], alone)


def test_padding_beside_keys_that_the_layer_adds():
    layer, x = bistoch.convert(build(add_bias_kv=True, add_zero_attn=True), "sinkhorn"), TOKENS
    x = x.double()
    padded, _ = layer(x, x, x, key_padding_mask=PADDING)
    alone, _ = layer(x[1:, :4], x[1:, :4], x[1:, :4])
    torch.testing.assert_close(padded[1:, :4], alone)


def test_one_sequence_and_other_orders_of_axes():
    layer, x = bistoch.convert(build(batch_first=False), "sinkhorn"), TOKENS.double()
    whole, plans = layer(*(x.transpose(0, 1),) * 3, average_attn_weights=False)
    for number in range(2):
        alone, plan = layer(x[number], x[number], x[number], average_attn_weights=False)
        torch.testing.assert_close(whole[:, number], alone)
        torch.testing.assert_close(plans[number], plan)


def test_causal_masks():
    layer = nn.MultiheadAttention(12, 3, batch_first=True).double()
    x, past = TOKENS.double(), nn.Transformer.generate_square_subsequent_mask(7).double()
    before = layer(x, x, x, attn_mask=past)[0]
    bistoch.convert(layer, "softmax")
    for hint, need in itertools.product([False, True], [False, True]):
        found = layer(x, x, x, attn_mask=past, is_causal=hint, need_weights=need)[0]
        torch.testing.assert_close(found, before)
    with pytest.raises(ValueError, match="got is_causal=True without attn_mask"):
        layer(x, x, x, is_causal=True)
    bistoch.convert(layer, "elastic(lam=0.5)")
    for hint in (False, True):
        with pytest.raises(ValueError, match="a balanced column sums over the future"):
            layer(x, x, x, attn_mask=past, is_causal=hint, need_weights=False)
    bistoch.convert(layer, "causal_elastic(lam=0.5, block=2)")
    found, plan = layer(x, x, x, attn_mask=past, is_causal=True)
    assert plan.triu(1).eq(0).all()
    torch.testing.assert_close(layer(x, x, x, attn_mask=past, need_weights=False)[0], found)


def test_dropout_in_training_only():
    layer = bistoch.convert(nn.MultiheadAttention(12, 3, 0.5, batch_first=True), "sinkhorn")
    first, second = (layer(TOKENS, TOKENS, TOKENS)[0] for _ in range(2))
    assert not torch.equal(first, second)
    layer.eval()
    assert torch.equal(*(layer(TOKENS, TOKENS, TOKENS)[0] for _ in range(2)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors():
    rows = [TOKENS[0], TOKENS[1, :4]]
    layer = bistoch.convert(nn.MultiheadAttention(12, 3, batch_first=True), "sinkhorn")
    for layout in (torch.strided, torch.jagged):
        x = torch.nested.as_nested_tensor(rows, layout=layout)
        found, _ = layer(x, x, x, need_weights=False)
        for one, row in zip(found.unbind(), rows, strict=True):
            torch.testing.assert_close(one, layer(row, row, row)[0])
    with pytest.raises(ValueError, match="nested tensors need need_weights=False"):
        layer(x, x, x)


# encoders and decoders


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_encoder(norm_first, training):
    layer = nn.TransformerEncoderLayer(
        12, 2, 24, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).train(training)
    with torch.set_grad_enabled(training):
        before = model(TOKENS)
        padded = model(TOKENS, src_key_padding_mask=PADDING)
        bistoch.convert(model, "softmax")
        # one padded batch, not one nested sequence after the other
        heard = []
        model.layers[0].register_forward_pre_hook(lambda layer, x: heard.append(x[0].is_nested))
        torch.testing.assert_close(model(TOKENS), before, atol=2e-6, rtol=1e-5)
        after = model(TOKENS, src_key_padding_mask=PADDING)
        assert heard == [False, False]
        torch.testing.assert_close(after[~PADDING], padded[~PADDING], atol=2e-6, rtol=1e-5)
        bistoch.convert(model, "sinkhorn")
        # the fused kernel of torch, which would compute softmax, is off
        assert not torch.allclose(model(TOKENS), before, atol=1e-4)
        after = model(TOKENS, src_key_padding_mask=PADDING)
        torch.testing.assert_close(after[1:, :4], model(TOKENS[1:, :4]), atol=2e-6, rtol=1e-5)
        assert torch.equal(bistoch.restore(model)(TOKENS), before)


def test_one_layer_of_an_encoder():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 2, 24, batch_first=True), 3)
    model.eval()
    bistoch.convert(model, "sinkhorn", layers=[1])
    kinds = [type(layer) is nn.TransformerEncoderLayer for layer in model.layers]
    assert kinds == [True, False, True]
    with torch.no_grad():
        quick = model(TOKENS)
    # with gradients, no layer uses the fused kernel
    torch.testing.assert_close(quick, model(TOKENS), atol=2e-6, rtol=1e-5)


def test_decoder_without_order():
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 2, 24, batch_first=True), 2)
    model.eval()
    before = model(TOKENS, MEMORY)
    torch.testing.assert_close(
        bistoch.convert(model, "softmax")(TOKENS, MEMORY), before, atol=2e-6, rtol=1e-5
    )
    bistoch.convert(model, "sinkhorn")
    assert not torch.allclose(model(TOKENS, MEMORY), before, atol=1e-4)
    with pytest.raises(ValueError, match=r"orthogonal may not be used in layer 1 .* different tok"):
        bistoch.convert(model, "orthogonal")


def test_decoder_with_order():
    model = nn.Transformer(12, 2, 1, 1, 24, batch_first=True).eval()
    past = nn.Transformer.generate_square_subsequent_mask(7)
    call = {"tgt_mask": past, "tgt_is_causal": True}
    before = model(MEMORY, TOKENS, **call)
    # the queries of cross-attention have an order too
    for layers in (["decoder"], ["decoder.layers.0.multihead_attn"]):
        bistoch.convert(model, "sinkhorn", layers=layers)
        for told in (call, {"tgt_mask": past}, {"tgt_mask": past == -torch.inf}):
            with pytest.raises(ValueError, match="must not know of later ones"):
                model(MEMORY, TOKENS, **told)
        bistoch.restore(model)
    bistoch.convert(model, "sinkhorn", layers=["encoder"])
    bistoch.convert(model, "causal_elastic", layers=["decoder.layers.0.self_attn"], lam=0.0)
    bistoch.convert(model, "softmax", layers=["decoder.layers.0.multihead_attn"])
    assert model(MEMORY, TOKENS, **call).shape == TOKENS.shape
    bistoch.convert(model, "softmax", layers=["encoder"])
    torch.testing.assert_close(model(MEMORY, TOKENS, **call), before, atol=2e-6, rtol=1e-5)
    assert torch.equal(bistoch.restore(model)(MEMORY, TOKENS, **call), before)


def test_the_function_of_torch_called_by_other_code():
    class Pool(nn.Module):
        """As the attention pooling of CLIP."""

        def __init__(self):
            super().__init__()
            self.num_heads = 3
            self.q, self.k, self.v, self.out = (nn.Linear(12, 12) for _ in range(4))

        def forward(self, x):
            x = x.transpose(0, 1)
            biases = torch.cat([self.q.bias, self.k.bias, self.v.bias])
            result, _ = nn.functional.multi_head_attention_forward(
                query=x[:1], key=x, value=x, embed_dim_to_check=12, num_heads=3,
                q_proj_weight=self.q.weight, k_proj_weight=self.k.weight,
                v_proj_weight=self.v.weight, in_proj_weight=None, in_proj_bias=biases,
                bias_k=None, bias_v=None, add_zero_attn=False, dropout_p=0.0,
                out_proj_weight=self.out.weight, out_proj_bias=self.out.bias,
                use_separate_proj_weight=True, training=self.training, need_weights=False,
            )  # fmt: skip
            return result[0]

    layer = Pool()
    before = layer(TOKENS)
    torch.testing.assert_close(bistoch.convert(layer, "softmax")(TOKENS), before)
    with pytest.warns(UserWarning, match="has one query"):
        assert bistoch.convert(layer, lam=0.5)(TOKENS).shape == before.shape


def test_shapes_that_do_not_fit_get_the_sentence_of_torch():
    layer = bistoch.convert(nn.MultiheadAttention(12, 3), "sinkhorn")
    with pytest.raises((AssertionError, RuntimeError), match="key_padding_mask"):
        layer(TOKENS, TOKENS, TOKENS, key_padding_mask=torch.ones(3, dtype=torch.bool))
