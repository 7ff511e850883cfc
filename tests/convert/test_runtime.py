"""Converted layers in all that torch does to modules: copies, compilers, threads, precision."""

import copy
import io
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bistoch
from bistoch.analysis import capture
from foreign_layers import LikeSwin, LikeTimm, Own

TOKENS = torch.randn(2, 16, 12, generator=torch.Generator().manual_seed(1))


def build():
    model = nn.Sequential(
        Own(), LikeTimm(), LikeSwin(shift=1), nn.TransformerEncoderLayer(12, 2, 24, 0.0)
    )
    return bistoch.convert(model, "elastic(iters=4)", lam=0.5)


def test_copies_and_pickles_are_models_of_their_own():
    model = build()
    before = model(TOKENS)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(other(TOKENS), before)
        with torch.no_grad():
            other[0].bistoch.operator.lam.fill_(0.0)
        assert not torch.equal(other(TOKENS), before)
        assert [type(layer) for layer in bistoch.restore(other)][:2] == [Own, LikeTimm]
    assert torch.equal(model(TOKENS), before)


def test_replicas_of_data_parallel():
    layer = build()[0]
    before = layer(TOKENS)
    replica = layer._replicate_for_data_parallel()
    # what replicate does: every replica gets tensors of its own
    replica._modules = {name: copy.deepcopy(child) for name, child in layer._modules.items()}
    assert torch.equal(replica(TOKENS), before)
    with torch.no_grad():
        replica.bistoch.operator.lam.fill_(0.0)
        replica.out.bias.add_(1)
    assert not torch.equal(replica(TOKENS), before)
    assert torch.equal(layer(TOKENS), before)


def test_threads_do_not_feel_each_other():
    balanced, plain = bistoch.convert(Own(), "sinkhorn"), Own()
    wanted = {"balanced": balanced(TOKENS), "plain": plain(TOKENS)}
    wrong, start = [], threading.Barrier(4)

    def run(name, layer):
        start.wait(timeout=60)
        for _ in range(50):
            if not torch.equal(layer(TOKENS), wanted[name]):
                wrong.append(name)

    jobs = [("balanced", balanced), ("plain", plain)] * 2
    threads = [threading.Thread(target=run, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not wrong


def test_compiled_in_one_graph_with_gradients():
    layer = bistoch.convert(Own(), "elastic(iters=4)", lam=0.5)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    before = layer(TOKENS)
    grads = torch.autograd.grad(before.sum(), list(layer.parameters()))
    after = compiled(TOKENS)
    torch.testing.assert_close(after, before)
    again = torch.autograd.grad(after.sum(), list(layer.parameters()))
    for one, other in zip(grads, again, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("make", [LikeTimm, lambda: LikeSwin(shift=1)])
def test_compiled_in_one_graph(make):
    layer = bistoch.convert(make(), "elastic(lam=0.5, iters=4)", heads=[1])
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(TOKENS), layer(TOKENS))


def test_compiled_layers_of_torch():
    layer = nn.TransformerEncoderLayer(12, 2, 24, 0.0, batch_first=True)
    bistoch.convert(layer, "elastic(lam=0.5)")
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(TOKENS), layer(TOKENS))
    real = torch.arange(16) < torch.tensor([[16], [9]])
    call = {"src_key_padding_mask": ~real}
    after, before = compiled(TOKENS, **call), layer(TOKENS, **call)
    torch.testing.assert_close(after[real], before[real])


def test_convert_and_restore_after_compiling():
    layer = Own()
    compiled = torch.compile(layer, backend="eager")
    before = compiled(TOKENS)
    bistoch.convert(layer, "sinkhorn")
    balanced = layer(TOKENS)
    assert not torch.allclose(balanced, before)
    torch.testing.assert_close(compiled(TOKENS), balanced)
    bistoch.restore(layer)
    torch.testing.assert_close(compiled(TOKENS), before)


@pytest.mark.slow
def test_graph_breaks_inside_a_layer():
    class Breaks(Own):
        def forward(self, x):
            torch._dynamo.graph_break()
            return super().forward(x)

    layer = bistoch.convert(Breaks(), "sinkhorn")
    compiled = torch.compile(layer, backend="eager")
    torch.testing.assert_close(compiled(TOKENS), layer(TOKENS))


def test_export():
    layer = bistoch.convert(Own(), "elastic(lam=0.5)")
    program = torch.export.export(layer, (TOKENS,)).module()
    torch.testing.assert_close(program(TOKENS), layer(TOKENS))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_around_a_layer(reentrant):
    layer, x = build()[0], TOKENS.clone().requires_grad_()
    whole = layer(x)
    wanted = torch.autograd.grad(whole.square().sum(), [x, layer.bistoch.operator.lam])
    found = checkpoint(layer, x, use_reentrant=reentrant)
    found.square().sum().backward()
    torch.testing.assert_close(found, whole)
    torch.testing.assert_close(x.grad, wanted[0])
    torch.testing.assert_close(layer.bistoch.operator.lam.grad, wanted[1])


def test_checkpoints_inside_a_layer_are_refused():
    class Saves(Own):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    layer = Saves()
    assert layer(TOKENS).shape == TOKENS.shape
    bistoch.convert(layer, "sinkhorn")
    with pytest.raises(NotImplementedError, match="checkpoint the whole layer instead"):
        layer(TOKENS)


@pytest.mark.parametrize("operator", ["softmax", "sinkhorn"])
def test_autocast(operator):
    layer = bistoch.convert(LikeTimm(), operator)
    exact = layer(TOKENS)
    with torch.autocast("cpu", torch.bfloat16):
        cast = layer(TOKENS)
        q, k, v = torch.randn(3, 2, 3, 5, 4).unbind()
        # one dtype or several, as a normalisation of queries makes them
        assert layer.bistoch(q, k, v).dtype == torch.bfloat16
        assert layer.bistoch(q, k, v.bfloat16()).dtype == torch.bfloat16
    assert cast.dtype == torch.bfloat16
    torch.testing.assert_close(cast.float(), exact, atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_precision_of_the_model(dtype):
    layer = LikeTimm().to(dtype)
    x = TOKENS.to(dtype)
    before = layer(x)
    after = bistoch.convert(layer, "elastic(learn='head')")(x)
    assert after.dtype == dtype
    tolerance = 1e-9 if dtype == torch.float64 else 2e-2
    torch.testing.assert_close(after, before, atol=tolerance, rtol=tolerance)


def test_hooks_stay():
    layer, heard = Own(), []
    layer.register_forward_hook(lambda *call: heard.append("own"))
    layer.query.register_forward_hook(lambda *call: heard.append("query"))
    bistoch.convert(layer, "sinkhorn")
    layer.bistoch.operator.register_forward_hook(lambda *call: heard.append("operator"))
    layer(TOKENS)
    assert heard == ["query", "operator", "own"]
    bistoch.restore(layer)(TOKENS)
    assert heard[3:] == ["query", "own"]


def test_lam_learns_and_is_part_of_the_model():
    model = bistoch.convert(nn.Sequential(Own(), Own()))
    names = [name for name, _ in model.named_parameters() if name.endswith("lam")]
    assert names == ["0.bistoch.operator.lam", "1.bistoch.operator.lam"]
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    wanted = torch.randn(2, 16, 12)
    for _ in range(3):
        optimizer.zero_grad()
        (model(TOKENS) - wanted).square().mean().backward()
        optimizer.step()
    assert all(bool((layer.bistoch.operator.lam != 0).any()) for layer in model)
    model.to(torch.float64)
    assert model[0].bistoch.operator.lam.dtype == torch.float64


def test_modes_of_a_model_reach_the_operator():
    model = bistoch.convert(Own().eval(), "sinkhorn")
    assert not model.bistoch.training
    assert model.train().bistoch.operator.training


@pytest.mark.parametrize("heads", [None, [1]])
def test_capture_records_the_plans_of_operators(heads):
    model = nn.Sequential(Own(), LikeTimm(), nn.TransformerEncoderLayer(12, 2, 24, 0.0))
    bistoch.convert(model, "sinkhorn(iters=200)", layers=[0, 2], heads=heads)
    seen_by_hook = []
    model[0].bistoch.register_forward_hook(lambda swap, call, result: seen_by_hook.append(call))
    with capture(model) as seen:
        result = model(TOKENS)
    assert torch.equal(result, model(TOKENS))
    assert [(plan.name, plan.source) for plan in seen.plans] == [
        ("0", "operator"), ("1", "sdpa"), ("2.self_attn", "operator"),
    ]  # fmt: skip
    assert not seen.missed
    chosen = slice(None) if heads is None else heads
    for number in (0, 2):
        sums = seen.plans[number].plan.sum(-2)[:, chosen]
        assert (sums - 1).abs().max() < 1e-3
    torch.testing.assert_close(seen.plans[0].plan, model[0].bistoch.plan(*seen_by_hook[0][:2]))
