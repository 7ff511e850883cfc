import copy
import warnings

import pytest
import torch
from torch import nn

from bistoch.nn import Elastic, MultiheadAttention

OPERATORS = ["softmax", "sinkhorn", "elastic(lam=0.5, iters=3)", "elastic(lam=0.3, learn='head')"]


def pair(embed_dim=14, num_heads=7, operator="softmax", **options):
    """Torch's layer and ours with the same weights, biases not zero."""
    theirs = nn.MultiheadAttention(embed_dim, num_heads, **options).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = MultiheadAttention(embed_dim, num_heads, operator=operator, **options).double()
    ours.load_state_dict(theirs.state_dict(), strict=not list(ours.operator.parameters()))
    return theirs, ours


def sequences(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def compare(theirs, ours, *tokens, **options):
    torch.testing.assert_close(ours(*tokens, **options), theirs(*tokens, **options))


PADDING = torch.arange(5) >= torch.tensor([[5], [2], [3]])
FORBIDDEN = torch.rand(11, 5, generator=torch.Generator().manual_seed(1)) > 0.7
FORBIDDEN[:, 0] = False
BY_HEAD = torch.rand(21, 11, 5, generator=torch.Generator().manual_seed(2)) > 0.7
BY_HEAD[..., 0] = False


def as_bias(mask):
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, -torch.inf)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"key_padding_mask": PADDING},
        {"key_padding_mask": as_bias(PADDING)},
        {"key_padding_mask": as_bias(PADDING) + 0.5 * torch.arange(5)},
        {"attn_mask": FORBIDDEN},
        {"attn_mask": as_bias(FORBIDDEN) + 0.3},
        {"attn_mask": BY_HEAD},
        {"attn_mask": FORBIDDEN, "key_padding_mask": PADDING},
        {"attn_mask": BY_HEAD, "key_padding_mask": PADDING},
        {"attn_mask": as_bias(BY_HEAD), "key_padding_mask": as_bias(PADDING) - 0.2},
    ],
    ids=lambda masks: "+".join(masks) or "none",
)
def test_softmax_equals_torch(masks, need_weights):
    theirs, ours = pair(batch_first=True)
    x, y, z = sequences(3, 11, 14), sequences(3, 5, 14), sequences(3, 5, 14)
    compare(theirs, ours, x, y, z, need_weights=need_weights, **masks)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_softmax_equals_torch_in_every_layout(batch_first, bias, average):
    theirs, ours = pair(batch_first=batch_first, bias=bias)
    x, y = sequences(3, 11, 14), sequences(3, 5, 14)
    if not batch_first:
        x, y = x.transpose(0, 1), y.transpose(0, 1)
    masks = {"key_padding_mask": PADDING, "attn_mask": BY_HEAD}
    compare(theirs, ours, x, y, y, average_attn_weights=average, **masks)


def test_softmax_equals_torch_for_one_sequence():
    theirs, ours = pair()
    x, y = sequences(11, 14), sequences(5, 14)
    compare(theirs, ours, x, y, y, key_padding_mask=PADDING[1], attn_mask=BY_HEAD[:7])
    compare(theirs, ours, x, y, y, attn_mask=FORBIDDEN, average_attn_weights=False)


def test_softmax_equals_torch_in_padded_self_attention_and_in_gradients():
    theirs, ours = pair(batch_first=True)
    x = sequences(3, 5, 14)
    for layer in (theirs, ours):
        layer(x, x, x, key_padding_mask=PADDING)[0].square().sum().backward()
    # also the results of padded queries are those of torch, since no other row feels them
    compare(theirs, ours, x, x, x, key_padding_mask=PADDING)
    for (name, a), b in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, msg=lambda m: f"{name}: {m}")  # noqa: B023


def test_softmax_equals_torch_for_a_causal_mask():
    theirs, ours = pair(batch_first=True)
    x = sequences(3, 11, 14)
    mask = nn.Transformer.generate_square_subsequent_mask(11, dtype=torch.float64)
    compare(theirs, ours, x, x, x, attn_mask=mask, is_causal=True)
    compare(theirs, ours, x, x, x, attn_mask=mask, is_causal=True, need_weights=False)


@pytest.mark.parametrize("bias", [True, False])
def test_the_state_dict_is_that_of_torch(bias):
    torch.manual_seed(5)
    theirs = nn.MultiheadAttention(14, 7, bias=bias)
    torch.manual_seed(5)
    ours = MultiheadAttention(14, 7, bias=bias)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    # even the first weights of one seed
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor)
    theirs.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("operator", OPERATORS)
def test_state_dict_round_trip_and_copy(operator):
    (_, ours), (_, fresh) = pair(operator=operator), pair(operator=operator)
    x = sequences(11, 3, 14)
    fresh.load_state_dict(ours.state_dict())
    assert torch.equal(fresh(x, x, x)[0], ours(x, x, x)[0])
    assert torch.equal(copy.deepcopy(ours)(x, x, x)[0], ours(x, x, x)[0])


@pytest.mark.parametrize("operator", [*OPERATORS, "hard", "anneal(iters=7)"])
def test_the_result_does_not_depend_on_asking_for_weights(operator):
    _, ours = pair(operator=operator, batch_first=True)
    x = sequences(3, 5, 14)
    with_weights, weights = ours(x, x, x, key_padding_mask=PADDING, average_attn_weights=False)
    without, nothing = ours(x, x, x, key_padding_mask=PADDING, need_weights=False)
    torch.testing.assert_close(with_weights, without)
    assert nothing is None
    assert weights.shape == (3, 7, 5, 5)


@pytest.mark.parametrize("padding", [PADDING, as_bias(PADDING)], ids=["bool", "float"])
@pytest.mark.parametrize("operator", [*OPERATORS, "sliced", "lowrank(rank=3)"])
def test_a_padded_batch_equals_its_sequences_one_by_one(operator, padding):
    _, ours = pair(operator=operator, batch_first=True)
    x = sequences(3, 5, 14)
    padded, weights = ours(x, x, x, key_padding_mask=padding)
    for i, length in enumerate([5, 2, 3]):
        alone, plan = ours(x[i, :length], x[i, :length], x[i, :length])
        torch.testing.assert_close(padded[i, :length], alone)
        torch.testing.assert_close(weights[i, :length, :length], plan)
        if operator != "softmax":
            assert not weights[i, length:].any()


def test_a_query_that_sees_nothing_returns_the_bias():
    _, ours = pair(operator="elastic", batch_first=True)
    x = sequences(3, 5, 14)
    nothing = torch.ones(5, 5, dtype=torch.bool)
    output, weights = ours(x, x, x, attn_mask=nothing)
    torch.testing.assert_close(output, ours.out_proj.bias.expand(3, 5, 14))
    assert not weights.any()


def test_dropout_acts_on_the_result_and_only_in_training():
    _, ours = pair(dropout=0.5)
    x = sequences(11, 3, 14)
    plain, dropped = ours.eval()(x, x, x)[0], ours.train()(x, x, x)[0]
    kept = dropped != 0
    assert 0.3 < kept.double().mean() < 0.7
    torch.testing.assert_close(dropped[kept], 2 * plain[kept])


def encoder_layer(operator, **options):
    # an even number of heads, as torch's fast path wants it
    options = {"dropout": 0.0, "batch_first": True, "dtype": torch.float64} | options
    layer = nn.TransformerEncoderLayer(16, 4, 31, **options)
    ours = MultiheadAttention(16, 4, batch_first=True, dtype=torch.float64, operator=operator)
    ours.load_state_dict(layer.self_attn.state_dict())
    layer.self_attn = ours
    return layer


@pytest.mark.parametrize("padding", [None, PADDING])
@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_layer_uses_our_operator_in_evaluation_too(norm_first, padding):
    torch.manual_seed(3)
    layer = encoder_layer("elastic(lam=1.0)", norm_first=norm_first)
    torch.manual_seed(3)
    softmax = encoder_layer("softmax", norm_first=norm_first)
    x = sequences(3, 5, 16)
    trained = layer(x, src_key_padding_mask=padding)
    with torch.inference_mode():
        evaluated = layer.eval()(x, src_key_padding_mask=padding)
        plain = softmax.eval()(x, src_key_padding_mask=padding)
    torch.testing.assert_close(evaluated, trained)
    assert (evaluated - plain).abs().max() > 1e-3


def test_with_softmax_an_encoder_layer_is_that_of_torch():
    torch.manual_seed(3)
    theirs = nn.TransformerEncoderLayer(16, 4, 31, 0.0, batch_first=True, dtype=torch.float64)
    torch.manual_seed(3)
    ours, x = encoder_layer("softmax"), sequences(3, 5, 16)
    torch.testing.assert_close(ours(x), theirs(x))
    with torch.inference_mode():
        torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("swapped", ["before", "after"])
def test_a_whole_encoder_uses_our_operator_in_evaluation_too(swapped):
    layer, x = encoder_layer("elastic(lam=1.0)"), sequences(3, 5, 16)
    if swapped == "before":
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    else:
        # this encoder still believes in torch's fast path, and hands over nested tensors
        plain = nn.TransformerEncoderLayer(16, 4, 31, 0.0, batch_first=True, dtype=torch.float64)
        encoder = nn.TransformerEncoder(plain, 2)
        encoder.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(2)])
    trained = encoder(x, src_key_padding_mask=PADDING)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors is in prototype")
        evaluated = encoder.eval()(x, src_key_padding_mask=PADDING)
    torch.testing.assert_close(evaluated[~PADDING], trained[~PADDING])


def test_it_is_both_attentions_of_a_decoder_layer():
    layer = nn.TransformerDecoderLayer(14, 7, 31, 0.0, batch_first=True, dtype=torch.float64)
    x, memory = sequences(3, 11, 14), sequences(3, 5, 14)
    wanted = layer(x, memory, memory_key_padding_mask=PADDING)
    for name in ("self_attn", "multihead_attn"):
        ours = MultiheadAttention(14, 7, batch_first=True, dtype=torch.float64)
        ours.load_state_dict(getattr(layer, name).state_dict())
        setattr(layer, name, ours)
    torch.testing.assert_close(layer(x, memory, memory_key_padding_mask=PADDING), wanted)


def test_it_compiles_as_one_graph():
    _, ours = pair(operator="elastic(lam=0.3, learn='head', iters=3)", batch_first=True)
    x = sequences(3, 5, 14)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    eager, found = (f(x, x, x, PADDING, need_weights=False)[0] for f in (ours, compiled))
    torch.testing.assert_close(found, eager)
    slopes = [torch.autograd.grad(y.square().sum(), ours.operator.lam)[0] for y in (found, eager)]
    torch.testing.assert_close(*slopes)


def test_autocast_gives_half_precision():
    ours, x = MultiheadAttention(14, 7, operator="elastic(lam=0.5)"), torch.randn(11, 3, 14)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, weights = ours(x, x, x)
        direct, _ = ours(x, x, x, need_weights=False)
    assert output.dtype == weights.dtype == direct.dtype == torch.bfloat16
    wanted = ours(x, x, x)[0]
    torch.testing.assert_close(output.float(), wanted, atol=0.03, rtol=0.03)
    torch.testing.assert_close(direct.float(), wanted, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("operator", ["sinkhorn", "elastic(lam=0.5)", "hard", "anneal"])
def test_an_operator_whose_rows_feel_each_other_refuses_is_causal(operator):
    ours, x = MultiheadAttention(14, 7, operator=operator), torch.randn(11, 3, 14)
    mask = torch.ones(11, 11).triu(1).bool()
    with pytest.raises(
        ValueError, match="a balanced column sums over rows of the future"
    ) as caught:
        ours(x, x, x, attn_mask=mask, is_causal=True)
    assert repr(ours.operator) in str(caught.value)
    # the mask alone is the user's business
    weights = ours(x, x, x, attn_mask=mask)[1]
    assert not weights[mask.expand(3, 11, 11)].any()


class Uniform(nn.Module):
    """An operator of the user's own: every key gets the same."""

    def plan(self, query, key, *, mask=None, query_mask=None, key_mask=None):
        return query.new_full((*query.shape[:-1], key.shape[-2]), 1 / key.shape[-2])

    def forward(self, query, key, value, *, mask=None, query_mask=None, key_mask=None):
        return self.plan(query, key) @ value


def test_an_operator_of_the_users_own():
    ours, x = MultiheadAttention(14, 7, operator=Uniform()), torch.randn(11, 3, 14)
    output, weights = ours(x, x, x)
    torch.testing.assert_close(weights, torch.full((3, 11, 11), 1 / 11))
    torch.testing.assert_close(output, ours(x, x, x, need_weights=False)[0])
    with pytest.raises(ValueError, match="is_causal must be False for the operator Uniform"):
        ours(x, x, x, is_causal=True)


def test_a_module_operator_is_taken_to_the_device():
    operator = Elastic(learn="head", heads=7)
    ours = MultiheadAttention(14, 7, device="meta", operator=operator)
    assert {p.device.type for p in ours.parameters()} == {"meta"}


@pytest.mark.parametrize("name", ["kdim", "vdim", "add_bias_kv", "add_zero_attn"])
def test_what_is_not_offered_is_refused(name):
    with pytest.raises(TypeError, match=name):
        MultiheadAttention(14, 7, **{name: 5})


x = torch.zeros(3, 11, 14)
ones = torch.ones(3, 11)


@pytest.mark.parametrize(
    ("tokens", "options", "error", "sentence"),
    [
        ((x[..., :13],) * 3, {}, ValueError, "MultiheadAttention: query must have 14 features"),
        ((x, x[None], x), {}, ValueError, "MultiheadAttention: key must have 3 axes"),
        ((x, x, x.int()), {}, TypeError, "MultiheadAttention: value must be a floating-point"),
        (([1.0], x, x), {}, TypeError, "MultiheadAttention: query must be a torch.Tensor"),
        ((x, x[:2], x[:2]), {}, ValueError, "MultiheadAttention: the leading axes"),
        (
            (x, x, x),
            {"key_padding_mask": ones.T.bool()},
            ValueError,
            "key_padding_mask must have the shape (3, 11), but its shape is (11, 3)",
        ),
        (
            (x, x, x),
            {"key_padding_mask": ones.int()},
            TypeError,
            "key_padding_mask must be a boolean tensor (True = hidden)",
        ),
        (
            (x, x, x),
            {"attn_mask": torch.ones(3, 11, 11)},
            ValueError,
            "attn_mask must have the shape (11, 11) or (21, 11, 11), but its shape is (3, 11, 11)",
        ),
        ((x, x, x), {"is_causal": True}, ValueError, "is_causal=True needs the causal attn_mask"),
    ],
)
def test_wrong_input_is_refused_in_words(tokens, options, error, sentence):
    with pytest.raises(error) as caught:
        MultiheadAttention(14, 7, batch_first=True)(*tokens, **options)
    assert sentence in str(caught.value)


def test_wrong_set_up_is_refused_in_words():
    with pytest.raises(ValueError, match="embed_dim must be divisible by num_heads, but 13 = 1"):
        MultiheadAttention(13, 7)


def test_nested_tensors_with_weights_are_refused():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors is in prototype")
        ragged = torch.nested.nested_tensor([torch.zeros(5, 14), torch.zeros(3, 14)])
    with pytest.raises(ValueError, match="nested tensors need need_weights=False and no masks"):
        MultiheadAttention(14, 7, batch_first=True)(ragged, ragged, ragged)


def test_what_only_torch_offers_is_answered():
    with pytest.raises(TypeError, match=r"kdim must be left out, .* with bistoch.convert"):
        MultiheadAttention(16, 4, kdim=8)
    with pytest.raises(TypeError, match="unknown argument 'kdims'"):
        MultiheadAttention(16, 4, kdims=8)
    MultiheadAttention(16, 4, kdim=None, vdim=None, add_bias_kv=False)
