"""Capture sees every plan, changes no bit, and leaves nothing behind."""

import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.modules import module as torch_module

import bistoch
from bistoch.analysis.capture import IncompleteCaptureWarning, capture

ATTEND = functional.scaled_dot_product_attention


class Plain(nn.Module):
    """A user of torch's function: heads of queries, fewer heads of keys, any mask."""

    def __init__(self, imported=False, **options):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.options, self.imported = options, imported

    def forward(self, q, k, v):
        module = functional.scaled_dot_product_attention
        attend = scaled_dot_product_attention if self.imported else module
        return attend(self.linear(q), k, v, **self.options)


class Two(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.blocks = nn.ModuleList(layers)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


class Block(nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.attention = bistoch.nn.Attention(16, heads=4, operator=operator)

    def forward(self, x):
        return self.attention(x)


@pytest.fixture(autouse=True)
def _nothing_stays():
    """After every test: the functions are torch's, no hook is left."""
    yield
    assert functional.scaled_dot_product_attention is ATTEND
    assert vars(sys.modules["bistoch.functional.softmax"])["scaled_dot_product_attention"] is ATTEND
    assert not torch_module._has_any_global_hook()
    assert bistoch.nn.operators.OperatorModule.plan.__qualname__ == "OperatorModule.plan"
    assert not hasattr(bistoch.nn.operators.OperatorModule.plan, "__wrapped__")


OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.7},
    "boolean": {"attn_mask": torch.rand(7, 7, generator=torch.Generator().manual_seed(1)) < 0.7},
    "bias": {"attn_mask": torch.randn(5, 1, 7, 7, generator=torch.Generator().manual_seed(1))},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("imported", [False, True], ids=["attribute", "imported"])
def test_sdpa_plans_are_those_that_were_used(name, imported):
    model = Plain(imported, **OPTIONS[name]).double()
    q, k, v = torch.randn(3, 5, 2, 7, 8, dtype=torch.float64).unbind()
    expected = model(q, k, v)
    with capture(model, problems=3) as seen:
        result = model(q, k, v)
    assert torch.equal(result, expected)
    (found,) = seen.plans
    assert (found.name, found.source, found.plan.shape) == ("", "sdpa", (3, 2, 7, 7))
    torch.testing.assert_close(found.plan @ found.value, result[[0, 2, 4]])


def test_grouped_heads_share_their_keys():
    model = Plain(enable_gqa=True)
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    with capture(model) as seen:
        result = model(q, k, v)
    (found,) = seen.plans
    assert found.plan.shape == (2, 6, 5, 7)
    torch.testing.assert_close(found.plan @ found.value, result)


def test_half_precision_is_recorded_in_float32():
    model = Plain().bfloat16()
    q, k, v = torch.randn(3, 1, 2, 7, 8).bfloat16().unbind()
    with capture(model) as seen:
        model(q, k, v)
    assert seen.plans[0].plan.dtype == torch.float32
    torch.testing.assert_close(seen.plans[0].plan.sum(-1), torch.ones(1, 2, 7))


@pytest.mark.parametrize(
    "operator", ["softmax", "elastic(lam=0.5)", "elastic(learn='head')", "hard"]
)
def test_operators_of_a_model(operator):
    model = Two(Block(operator), Block(operator))
    x = torch.randn(3, 7, 16)
    expected = model(x)
    with capture(model) as seen:
        result = model(x)
    assert torch.equal(result, expected)
    assert [p.name for p in seen.plans] == ["blocks.0.attention", "blocks.1.attention"]
    assert {p.source for p in seen.plans} == {"operator"}
    torch.testing.assert_close(seen.plans[0].plan, model.blocks[0].attention.plan(x))
    assert [s.name for s in seen.states] == ["blocks.0.input", "blocks.0", "blocks.1"]
    assert torch.equal(seen.states[0].state, x)


def test_padding_and_an_option_per_sequence():
    layer = bistoch.nn.Attention(16, 4, operator=bistoch.nn.Elastic(lam=torch.rand(3, 4), iters=3))
    x, real = torch.randn(3, 7, 16), torch.arange(7) < torch.tensor([7, 5, 2])[:, None]
    with capture(layer, problems=2) as seen:
        layer(x, key_mask=real)
    torch.testing.assert_close(seen.plans[0].plan, layer.plan(x, key_mask=real)[[0, 2]])
    shared = bistoch.nn.Attention(16, 4, operator="elastic(lam=0.5)")
    with capture(shared, problems=2) as seen:
        shared(x, key_mask=real)
    torch.testing.assert_close(seen.plans[0].plan, shared.plan(x, key_mask=real)[[0, 2]])


@pytest.mark.parametrize("need_weights", [False, True])
def test_our_layer_with_the_contract_of_torch(need_weights):
    layer = bistoch.nn.MultiheadAttention(16, 4, batch_first=True, operator="elastic(lam=0.5)")
    x = torch.randn(5, 7, 16)
    _, weights = layer(x, x, x, average_attn_weights=False)
    with capture(layer, problems=2) as seen:
        layer(x, x, x, need_weights=need_weights)
    (found,) = seen.plans
    assert (found.name, found.source) == ("", "operator")
    torch.testing.assert_close(found.plan, weights[[0, 4]])
    assert found.value.shape == (2, 4, 7, 4)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_the_layer_of_torch(batch_first, training, need_weights):
    layer = nn.MultiheadAttention(16, 4, dropout=0.3, batch_first=batch_first).train(training)
    x = torch.randn(5, 7, 16) if batch_first else torch.randn(7, 5, 16)
    padding = torch.arange(7) >= torch.tensor([7, 5, 7, 3, 6])[:, None]
    torch.manual_seed(3)
    expected, _ = layer(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    torch.manual_seed(3)
    with capture(layer, problems=3) as seen:
        result, _ = layer(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    assert torch.equal(result, expected)
    (found,) = seen.plans
    assert found.source == "multihead"
    _, weights = layer.eval()(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    torch.testing.assert_close(found.plan, weights[[0, 2, 4]])
    heads = (found.plan @ found.value).transpose(1, 2).flatten(-2)
    plain = layer(x, x, x, key_padding_mask=padding)[0]
    plain = plain if batch_first else plain.transpose(0, 1)
    torch.testing.assert_close(layer.out_proj(heads), plain[[0, 2, 4]])


def test_one_sequence_other_sizes_and_masks_per_head():
    layer = nn.MultiheadAttention(16, 4, kdim=6, vdim=5)
    q, k, v = torch.randn(7, 16), torch.randn(3, 6), torch.randn(3, 5)
    with capture(layer) as seen:
        layer(q, k, v)
    assert seen.plans[0].plan.shape == (4, 7, 3)
    layer = nn.MultiheadAttention(16, 4, batch_first=True, add_zero_attn=True)
    x, mask = torch.randn(3, 7, 16), torch.randn(12, 7, 7)
    with capture(layer, problems=1) as seen:
        layer(x, x, x, attn_mask=mask)
    _, weights = layer(x, x, x, attn_mask=mask, average_attn_weights=False)
    torch.testing.assert_close(seen.plans[0].plan, weights[:1])
    assert seen.plans[0].value is None


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_the_fused_encoder_of_torch_stays_fused(norm_first, padded, monkeypatch):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(3, 7, 16)
    padding = torch.arange(7) >= torch.tensor([7, 5, 2])[:, None] if padded else None
    fused = []
    kernel = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(
        torch, "_transformer_encoder_layer_fwd", lambda *a: fused.append(1) or kernel(*a)
    )
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        with capture(model) as seen:
            result = model(x, src_key_padding_mask=padding)
    assert len(fused) == 4
    assert torch.equal(result, expected)
    assert [p.name for p in seen.plans] == ["layers.0.self_attn", "layers.1.self_attn"]
    first = model.layers[0]
    tokens = first.norm1(x) if norm_first else x
    _, weights = first.self_attn(
        tokens, tokens, tokens, key_padding_mask=padding, average_attn_weights=False
    )
    for found, wanted, length in zip(seen.plans[0].plan, weights, (7, 5, 2), strict=True):
        real = length if padded else 7
        torch.testing.assert_close(found[:, :real], wanted[:, :real])
    assert [s.name for s in seen.states] == ["layers.0.input", "layers.0", "layers.1"]


def test_training_gives_the_same_gradients_and_random_numbers():
    def train(watched):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.5, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        x = torch.randn(3, 7, 16)
        if watched:
            with capture(model) as seen:
                model(x).square().sum().backward()
            assert len(seen.plans) == 2
            assert not any(p.plan.requires_grad for p in seen.plans)
        else:
            model(x).square().sum().backward()
        return [p.grad for p in model.parameters()] + [torch.rand(3)]

    assert all(torch.equal(a, b) for a, b in zip(train(False), train(True), strict=True))


def test_captures_nest_and_end_in_any_order():
    model, x = Two(Block("softmax"), Block("elastic")), torch.randn(2, 5, 16)
    outer, inner = capture(model), capture(model.blocks[1])
    first = outer.__enter__()
    second = inner.__enter__()
    model(x)
    outer.__exit__(None, None, None)
    model(x)
    inner.__exit__(None, None, None)
    model(x)
    assert [p.name for p in first.plans] == ["blocks.0.attention", "blocks.1.attention"]
    assert [(p.name, p.call) for p in second.plans] == [("attention", 0), ("attention", 1)]


def test_all_is_put_back_after_an_error():
    class Fails(nn.Module):
        def forward(self, x):
            raise KeyError("on purpose")

    model = Two(Block("softmax"), Fails())
    with pytest.raises(KeyError, match="on purpose"), capture(model) as seen:
        model(torch.randn(2, 5, 16))
    assert [p.name for p in seen.plans] == ["blocks.0.attention"]


def test_an_error_that_the_model_catches_confuses_no_names():
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.broken, self.block = nn.Linear(3, 3), Plain()

        def forward(self, x):
            try:
                self.broken(x)
            except RuntimeError:
                return self.block(x, x, x)

    model = Careful()
    with capture(model) as seen:
        model(torch.randn(2, 1, 5, 8))
    assert [p.name for p in seen.plans] == ["block"]


def test_only_the_model_and_only_this_thread():
    model, other = Plain(), Plain()
    q = torch.randn(1, 1, 5, 8)
    with capture(model) as seen:
        functional.scaled_dot_product_attention(q, q, q)
        other(q, q, q)
        thread = threading.Thread(target=lambda: model(q, q, q))
        thread.start()
        thread.join(60)
        assert not seen.plans
        model(q, q, q)
    assert len(seen.plans) == 1


def test_the_budget_bounds_what_is_kept():
    model, q = Plain(), torch.randn(2, 3, 11, 8)
    one = 4 * (2 * 3 * 11 * 11 + 2 * 3 * 11 * 8)
    watched = capture(model, budget=2 * one + 100)
    seen = watched.__enter__()
    for _ in range(4):
        model(q, q, q)
    with pytest.warns(IncompleteCaptureWarning, match="2 records are missing"):
        watched.__exit__(None, None, None)
    assert len(seen.plans) == 2
    assert seen.used == 2 * one <= seen.budget
    assert [(m.name, m.call) for m in seen.missed] == [("", 2), ("", 3)]


def test_states_by_pattern_or_none():
    model, x = Two(Block("softmax"), Block("softmax")), torch.randn(2, 5, 16)
    with capture(model, states="*.value") as seen:
        model(x)
    assert [s.name for s in seen.states] == [
        "blocks.0.attention.value", "blocks.1.attention.value"
    ]  # fmt: skip
    with capture(model, states=None) as seen:
        model(x)
    assert seen.states == []


def test_states_are_copies():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(*(nn.Sequential(nn.ReLU(inplace=True)) for _ in range(2)))

        def forward(self, x):
            return self.blocks(x).mul_(0)

    x = torch.randn(2, 5, 3)
    kept = x.clone()
    with capture(InPlace()) as seen:
        assert not seen.states
        InPlace()(x.clone())
    model = InPlace()
    with capture(model) as seen:
        model(x)
    assert torch.equal(seen.states[0].state, kept)
    assert torch.equal(seen.states[-1].state, kept.relu())


def test_a_plan_that_cannot_be_found_does_not_stop_the_model():
    class Odd(bistoch.nn.Softmax):
        def plan(self, query, key, **masks):
            raise NotImplementedError("no plan today")

    layer, x = bistoch.nn.Attention(16, 4, operator=Odd()), torch.randn(2, 5, 16)
    watched = capture(layer)
    seen = watched.__enter__()
    assert torch.equal(layer(x), layer(x))
    with pytest.warns(IncompleteCaptureWarning, match="no plan today"):
        watched.__exit__(None, None, None)
    assert [m.reason for m in seen.missed] == ["NotImplementedError: no plan today"] * 2


def test_mistakes_are_explained():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, but it is a function"):
        capture(lambda x: x).__enter__()
    with pytest.raises(ValueError, match="problems must be at least 1"):
        capture(Plain(), problems=0).__enter__()
    with pytest.raises(TypeError, match="states must be 'blocks', a pattern"):
        capture(Plain(), states=3).__enter__()
    with pytest.raises(ValueError, match=r"states='\*\.head' matches no module of Plain"):
        capture(Plain(), states="*.head").__enter__()
