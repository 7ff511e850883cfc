import copy

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import bistoch
from bistoch.nn import Attention, Elastic

OPERATORS = ["softmax", "sinkhorn", "elastic(lam=0.5, iters=3)", "elastic(lam=0.3, learn='head')"]


def layer(operator="softmax", dim=14, heads=7, **options):
    return Attention(dim, heads, operator, **options).double()


def sequences(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def by_hand(attention, query, key, value):
    """The layer written out, for softmax."""
    heads = []
    for linear, tokens in (
        (attention.query, query),
        (attention.key, key),
        (attention.value, value),
    ):
        batch, length, _ = tokens.shape
        heads.append(linear(tokens).reshape(batch, length, 7, 2).permute(0, 2, 1, 3))
    result = scaled_dot_product_attention(*heads).permute(0, 2, 1, 3)
    return attention.out(result.reshape(len(query), -1, 14))


def test_softmax_is_the_usual_attention():
    attention, x, y, z = layer(), sequences(3, 11, 14), sequences(3, 5, 14), sequences(3, 5, 14)
    torch.testing.assert_close(attention(x), by_hand(attention, x, x, x))
    torch.testing.assert_close(attention(x, y), by_hand(attention, x, y, y))
    torch.testing.assert_close(attention(x, y, z), by_hand(attention, x, y, z))
    torch.testing.assert_close(attention(x, value=x + 1), by_hand(attention, x, x, x + 1))


@pytest.mark.parametrize("name", bistoch.OPERATORS)
def test_every_operator_fits_and_its_plan_is_what_it_applies(name):
    keys = 5 if bistoch.OPERATORS[name].square else 3
    attention, x, y = layer(name), sequences(2, 5, 14), sequences(2, keys, 14)
    plan = attention.plan(x, y)
    values = attention.value(y).unflatten(-1, (7, 2)).transpose(1, 2)
    result = attention.out((plan @ values).transpose(1, 2).flatten(-2))
    assert plan.shape == (2, 7, 5, keys)
    torch.testing.assert_close(attention(x, y), result)


def test_other_widths_of_keys_and_values():
    x, y, z = sequences(2, 5, 14), sequences(2, 3, 11), sequences(2, 3, 13)
    assert layer(key_dim=11)(x, y).shape == (2, 5, 14)
    assert layer(key_dim=11, value_dim=13)(x, y, z).shape == (2, 5, 14)
    assert layer(value_dim=13)(x, value=sequences(2, 5, 13)).shape == (2, 5, 14)


def test_biases_can_be_left_out():
    names = {name for name, _ in layer(qkv_bias=False, out_bias=False).named_parameters()}
    assert names == {"query.weight", "key.weight", "value.weight", "out.weight"}
    assert "out.bias" in dict(layer(qkv_bias=False).named_parameters())


def test_dropout_acts_on_the_result_and_only_in_training():
    attention, x = layer(dropout=0.5), sequences(3, 11, 14)
    plain = attention.eval()(x)
    dropped = attention.train()(x)
    kept = dropped != 0
    assert 0.3 < kept.double().mean() < 0.7
    torch.testing.assert_close(dropped[kept], 2 * plain[kept])


@pytest.mark.parametrize("operator", OPERATORS)
def test_length_first_is_the_transpose(operator):
    attention, x, y = layer(operator), sequences(3, 11, 14), sequences(3, 5, 14)
    turned = layer(operator, batch_first=False)
    turned.load_state_dict(attention.state_dict())
    real = torch.rand(3, 5) > 0.3
    found = turned(x.transpose(0, 1), y.transpose(0, 1), key_mask=real)
    torch.testing.assert_close(found, attention(x, y, key_mask=real).transpose(0, 1))
    torch.testing.assert_close(
        turned.plan(x.transpose(0, 1), y.transpose(0, 1), key_mask=real),
        attention.plan(x, y, key_mask=real),
    )


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_single_sequence_needs_no_batch_axis(batch_first):
    attention = layer("elastic(lam=0.5)", batch_first=batch_first)
    x, y, mask = sequences(11, 14), sequences(5, 14), torch.rand(7, 11, 5) > 0.2
    real = torch.tensor([True] * 4 + [False])
    axis = 0 if batch_first else 1
    alone = attention(x, y, mask=mask, key_mask=real)
    batch = attention(
        x.unsqueeze(axis), y.unsqueeze(axis), mask=mask[None], key_mask=real[None]
    ).squeeze(axis)
    torch.testing.assert_close(alone, batch)
    assert attention.plan(x, y).shape == (7, 11, 5)


def test_an_empty_batch_stays_empty():
    assert layer("elastic")(sequences(0, 11, 14)).shape == (0, 11, 14)


@pytest.mark.parametrize("operator", [*OPERATORS, "hard(straight_through=True)", "anneal(iters=7)"])
def test_a_padded_batch_equals_its_sequences_one_by_one(operator):
    attention, lengths = layer(operator), [11, 3, 7]
    x = sequences(3, 11, 14)
    real = torch.arange(11) < torch.tensor(lengths)[:, None]
    weight = sequences(3, 11, 14) * real[..., None]

    padded = attention(x, key_mask=real)
    (padded * weight).sum().backward()
    together = {name: p.grad.clone() for name, p in attention.named_parameters()}

    attention.zero_grad()
    for i, length in enumerate(lengths):
        alone = attention(x[i, :length])
        torch.testing.assert_close(padded[i, :length], alone)
        (alone * weight[i, :length]).sum().backward()
    for name, parameter in attention.named_parameters():
        torch.testing.assert_close(together[name], parameter.grad, msg=lambda m: f"{name}: {m}")  # noqa: B023


@pytest.mark.parametrize("operator", OPERATORS)
def test_padded_cross_attention_equals_its_pairs_one_by_one(operator):
    attention, sizes = layer(operator), [(11, 2), (3, 5), (7, 3)]
    x, y = sequences(3, 11, 14), sequences(3, 5, 14)
    query_mask = torch.arange(11) < torch.tensor([n for n, _ in sizes])[:, None]
    key_mask = torch.arange(5) < torch.tensor([m for _, m in sizes])[:, None]
    padded = attention(x, y, query_mask=query_mask, key_mask=key_mask)
    for i, (n, m) in enumerate(sizes):
        torch.testing.assert_close(padded[i, :n], attention(x[i, :n], y[i, :m]))
        # a padded query brings nothing but the bias
        torch.testing.assert_close(padded[i, n:], attention.out.bias.expand(11 - n, 14))


def test_in_self_attention_one_padding_mask_stands_for_both():
    attention, x = layer("sinkhorn"), sequences(3, 11, 14)
    real, all_real = torch.rand(3, 11) > 0.3, torch.ones(3, 11, dtype=torch.bool)
    both = attention(x, query_mask=real, key_mask=real)
    assert torch.equal(attention(x, key_mask=real), both)
    assert torch.equal(attention(x, query_mask=real), both)
    assert torch.equal(attention(x, x, key_mask=real), both)
    # both can be said apart, and other tokens are other tokens
    apart = attention(x, query_mask=all_real, key_mask=real)
    assert not torch.allclose(apart, both)
    with pytest.warns(bistoch.PaddingWarning):
        torch.testing.assert_close(attention(x, x.clone(), key_mask=real), apart)


def test_masks_for_all_for_each_sequence_and_for_each_head():
    attention, x = layer("elastic(lam=0.5)"), sequences(3, 11, 14)
    mask = torch.rand(3, 7, 11, 11) > 0.3
    every, by_sequence, by_head = mask[0, 0], mask[:, :1], mask[:1]
    for small in (every, by_sequence, by_head):
        full = small.expand(3, 7, 11, 11)
        torch.testing.assert_close(attention(x, mask=small), attention(x, mask=full))
        assert not attention.plan(x, mask=small)[~full].any()
    bias = torch.where(every, 0.0, -torch.inf).double()
    torch.testing.assert_close(attention(x, mask=bias), attention(x, mask=every))


@pytest.mark.parametrize("operator", OPERATORS)
def test_state_dict_round_trip_and_copy(operator):
    attention, fresh, x = layer(operator), layer(operator), sequences(3, 11, 14)
    assert not torch.equal(attention(x), fresh(x))
    fresh.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x), fresh(x))
    assert torch.equal(copy.deepcopy(attention)(x), attention(x))
    assert ("operator.lam" in attention.state_dict()) == ("learn" in operator)


def test_a_module_is_taken_as_it_is_and_may_be_shared():
    operator = Elastic(learn="head", heads=7)
    first, second = layer(operator), layer(operator)
    (first(sequences(2, 5, 14)) + second(sequences(2, 5, 14))).sum().backward()
    assert first.operator is second.operator is operator
    assert operator.lam.grad is not None


def test_a_layer_trains_and_its_lam_moves():
    attention, x = layer("elastic(learn='head', iters=5)"), sequences(2, 11, 14)
    teacher = layer("sinkhorn(iters=5)")
    teacher.load_state_dict(attention.state_dict(), strict=False)
    wanted = teacher(x).detach()
    optimiser = torch.optim.AdamW(attention.operator.parameters(), lr=0.05)
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        loss = (attention(x) - wanted).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert attention.operator.lam.max() > 0.1


@pytest.mark.parametrize("operator", ["elastic(lam=0.3, learn='head', iters=3)", "softmax"])
def test_a_layer_compiles_as_one_graph(operator):
    attention, x = layer(operator), sequences(2, 11, 14)
    real = torch.arange(11) < torch.tensor([[11], [5]])
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    eager, found = attention(x, key_mask=real), compiled(x, key_mask=real)
    torch.testing.assert_close(found, eager)
    parameters = list(attention.parameters())
    wanted = torch.autograd.grad(eager.square().sum(), parameters)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), parameters), wanted)


def test_a_compiled_layer_follows_a_schedule_of_lam():
    attention, x = layer("elastic(lam=0.1, iters=3)"), sequences(2, 11, 14)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    for lam in (0.1, 0.6, 1.0):
        attention.operator.lam = lam
        torch.testing.assert_close(compiled(x), attention(x))


def test_a_layer_exports():
    attention, x = layer("elastic(lam=0.3, learn='head', iters=3)"), sequences(2, 11, 14)
    exported = torch.export.export(attention, (x,)).module()
    torch.testing.assert_close(exported(x), attention(x))


@pytest.mark.parametrize("operator", OPERATORS)
def test_autocast_gives_half_precision_close_to_full(operator):
    attention, x = Attention(14, 7, operator), torch.randn(3, 11, 14)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, plan = attention(x), attention.plan(x)
    assert found.dtype == plan.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), attention(x), atol=0.03, rtol=0.03)
    found.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in attention.parameters())


def test_checkpointing_changes_nothing():
    attention, x = layer("elastic(lam=0.3, learn='head')"), sequences(3, 11, 14)
    parameters = list(attention.parameters())
    plain = torch.autograd.grad(attention(x).square().sum(), parameters)
    again = checkpoint(attention, x, use_reentrant=False).square().sum()
    torch.testing.assert_close(torch.autograd.grad(again, parameters), plain)


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ((13, 7), ValueError, "Attention: dim must be divisible by heads, but 13 = 1 * 7 + 6"),
        ((0, 1), ValueError, "Attention: dim must be at least 1, but it is 0"),
        ((14, 0), ValueError, "Attention: heads must be at least 1, but it is 0"),
        ((14, 7.0), TypeError, "Attention: heads must be a whole number, but it is a float"),
        ((14, 7, "softmin"), ValueError, "operator: unknown name 'softmin'"),
        ((14, 7, 3), TypeError, "operator: expected a text"),
    ],
)
def test_wrong_set_up_is_refused_in_words(arguments, error, sentence):
    with pytest.raises(error) as caught:
        Attention(*arguments)
    assert sentence in str(caught.value)


x = torch.zeros(3, 11, 14)


@pytest.mark.parametrize(
    ("arguments", "masks", "error", "sentence"),
    [
        ((x[0, 0],), {}, ValueError, "Attention: query must have at least 2 axes"),
        ((x[None],), {}, ValueError, "Attention: query must have 3 axes"),
        ((x.int(),), {}, TypeError, "Attention: query must be a floating-point tensor"),
        (([1.0],), {}, TypeError, "Attention: query must be a torch.Tensor"),
        ((x[..., :13],), {}, ValueError, "Attention: query must have 14 features (its last axis)"),
        ((x, x[..., :13]), {}, ValueError, "Attention: key must have 14 features"),
        ((x, x, x[..., :13]), {}, ValueError, "Attention: value must have 14 features"),
        ((x, x[:2]), {}, ValueError, "Attention: the leading axes (batch, heads) must broadcast"),
        ((x, x[:, :5], x), {}, ValueError, "value must have one row per key"),
        (
            (x,),
            {"mask": torch.ones(3, 11, 11).bool()},
            ValueError,
            "Attention: mask must have 2 axes (n, m) or 4 axes (batch, heads, n, m), but its shape "
            "is (3, 11, 11); write mask[:, None] if it has one matrix per sequence",
        ),
        ((x,), {"mask": torch.ones(7, 11).bool()}, ValueError, "mask must broadcast to the scores"),
        ((x,), {"mask": torch.ones(11, 11).int()}, TypeError, "mask must be a boolean tensor"),
        (
            (x,),
            {"key_mask": torch.ones(11, 3).bool()},
            ValueError,
            "(3, 11), but its shape is (11, 3)",
        ),
        ((x,), {"key_mask": torch.ones(3, 11)}, TypeError, "mask must be a boolean tensor, True"),
        ((x, x + 1), {"query_mask": [True]}, TypeError, "Attention: query_mask must be a boolean"),
    ],
)
def test_wrong_input_is_refused_in_words(arguments, masks, error, sentence):
    with pytest.raises(error) as caught:
        Attention(14, 7)(*arguments, **masks)
    assert sentence in str(caught.value)
