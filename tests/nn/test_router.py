"""The router: even loads from past batches, nothing of the present one, and one way to decode."""

import copy
import io

import pytest
import torch

import bistoch
from bistoch.testing import assert_causal

N, DIM, EXPERTS = 257, 11, 5


def seeded(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def new_router(**options):
    torch.manual_seed(0)
    return bistoch.nn.Router(DIM, EXPERTS, **options)


def stream(router, batches=40, shift=1.0):
    """Loads of batches of tokens that prefer some experts."""
    middle = shift * seeded(DIM, seed=99)
    return [router(seeded(4, N, DIM, seed=i) + middle).load for i in range(batches)]


def overload(loads):
    return torch.stack([load.max() / load.float().mean() for load in loads]).mean().item()


def test_loads_become_even():
    without, ours = stream(new_router(lam=0.0)), stream(new_router())
    assert torch.equal(without[0], ours[0])
    assert overload(without[20:]) > 1.8
    assert overload(ours[20:]) < 1.12
    elastic = stream(new_router(lam=0.9))
    assert overload(ours[20:]) < overload(elastic[20:]) < overload(without[20:])


def test_two_experts_per_token_are_nearly_even_too():
    without, ours = stream(new_router(top_k=2, lam=0.0)), stream(new_router(top_k=2))
    assert int(ours[0].sum()) == 2 * 4 * N
    assert overload(without[20:]) > 1.4
    assert overload(ours[20:]) < 1.15


def test_the_choice_by_hand():
    router = new_router(top_k=2).eval()
    router.bias.copy_(torch.tensor([5.0, 0.0, 0.0, 0.0, -5.0]))
    x = seeded(3, 7, DIM)
    logits = x @ router.weight.T
    routing = router(x)
    assert torch.equal(routing.experts, (logits + router.bias).topk(2).indices)
    # the bias chooses, and does not weigh
    torch.testing.assert_close(routing.gates, logits.softmax(-1).gather(-1, routing.experts))
    assert torch.equal(routing.load, routing.experts.flatten().bincount(minlength=EXPERTS))
    assert not routing.dropped.any()


def test_the_bias_is_an_average_of_potentials():
    router = new_router(eps=0.5, lam=0.8, decay=0.6, iters=200)
    wanted = torch.zeros(EXPERTS)
    for number in range(5):
        x = seeded(1, N, DIM, seed=number)
        found = bistoch.elastic_potentials(
            x[0], router.weight.detach(), scale=1.0, eps=0.5, lam=0.8, iters=200
        ).column
        wanted = wanted + max(0.4, 1 / (number + 1)) * (0.5 * (found - found.mean()) - wanted)
        router(x)
    torch.testing.assert_close(router.bias, wanted, rtol=1e-4, atol=1e-5)


def test_row_mass_k_has_the_potentials_of_row_mass_one():
    logits, eye = seeded(N, EXPERTS), torch.eye(EXPERTS)
    one, two = (
        bistoch.elastic_potentials(logits, eye, scale=1.0, row_mass=torch.full((N,), k)).column
        for k in (1.0, 2.0)
    )
    torch.testing.assert_close(one - one.mean(), two - two.mean())


def test_the_present_batch_has_no_say():
    # in training too: the choice for a batch is made before it is counted
    router = new_router(capacity=1.1)
    stream(router, 3)
    frozen = copy.deepcopy(router).eval()
    x = seeded(2, 31, DIM)
    assert torch.equal(router(x).experts, frozen(x).experts)
    assert not torch.equal(router.bias, frozen.bias)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_no_token_sees_a_later_one(training, top_k):
    router = new_router(capacity=0.8, top_k=top_k)
    stream(router, 3)

    def gates(x):
        # a copy, since a call in training mode counts the batch
        routing = copy.deepcopy(router).train(training)(x)
        return x.new_zeros(*x.shape[:-1], EXPERTS).scatter(-1, routing.experts, routing.gates)

    assert_causal(gates, seeded(3, 13, DIM), gradient=False)
    slope = torch.autograd.functional.jacobian(lambda x: gates(x).sum(-1), seeded(1, 5, DIM))
    assert not slope[0, :, 0].sum(-1).triu(1).any()
    if training:
        assert copy.deepcopy(router).train()(seeded(3, 13, DIM)).dropped.any()


def test_a_router_that_balances_the_present_batch_is_caught():
    router = new_router().eval()

    def gates(x):
        plan = bistoch.balance(router.logits(x), eps=0.1)
        return plan * (plan == plan.amax(-1, keepdim=True))

    with pytest.raises(AssertionError, match="the future leaks"):
        assert_causal(gates, seeded(2, 13, DIM))


def test_decoding_token_by_token_is_the_forward_pass():
    router = new_router(capacity=0.5)
    stream(router, 5)
    router.eval()
    x = seeded(2, 17, DIM)
    whole = router(x)
    before = router.bias.clone()
    steps = [router(x[:, i : i + 1]) for i in range(17)]
    assert torch.equal(torch.cat([step.experts for step in steps], 1), whole.experts)
    torch.testing.assert_close(torch.cat([step.gates for step in steps], 1), whole.gates)
    assert torch.equal(router.bias, before)
    assert not whole.dropped.any()


def test_capacity_keeps_the_first_tokens():
    router = new_router(capacity=1.0)
    x = seeded(2, 20, DIM)
    routing = router(x)
    most = 40 // EXPERTS
    kept = routing.experts[~routing.dropped].bincount(minlength=EXPERTS)
    assert torch.equal(kept, routing.load.clamp_max(most))
    assert not routing.gates[routing.dropped].any()
    assert routing.gates[~routing.dropped].all()
    # by position first, then by sequence
    seen = dict.fromkeys(range(EXPERTS), 0)
    for position in range(20):
        for sequence in range(2):
            expert = routing.experts[sequence, position, 0].item()
            seen[expert] += 1
            assert routing.dropped[sequence, position, 0].item() == (seen[expert] > most)


def test_padding_counts_nowhere():
    real = torch.ones(2, 20, dtype=torch.bool)
    real[1, 12:] = False
    x = seeded(2, 20, DIM)
    other = x.clone()
    other[1, 12:] = 100.0
    results = []
    for tokens in (x, other):
        router = new_router(capacity=1.0)
        routing = router(tokens, mask=real)
        assert int(routing.load.sum()) == 32
        assert routing.dropped[1, 12:].all()
        assert not routing.gates[1, 12:].any()
        results.append((router.bias, routing.load, routing.dropped))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
    # a batch of padding alone teaches nothing
    router = new_router()
    router(x, mask=torch.zeros_like(real))
    assert not router.bias.any()


def test_a_batch_that_is_not_finite_spoils_nothing():
    router = new_router(top_k=2)
    stream(router, 3)
    before, x = router.bias.clone(), seeded(2, 20, DIM)
    x[0, 3, 1] = torch.nan
    router(x)
    assert torch.equal(router.bias, before)
    assert int(router.batches) == 3


def test_the_state_dict_brings_the_bias_along():
    router = new_router(top_k=2)
    stream(router, 4)
    content = io.BytesIO()
    torch.save(router.state_dict(), content)
    content.seek(0)
    other = bistoch.nn.Router(DIM, EXPERTS, top_k=2)
    other.load_state_dict(torch.load(content, weights_only=True))
    x = seeded(2, 17, DIM)
    for one, two in zip(router(x), other(x), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(router.bias, other.bias)
    assert int(other.batches) == 5


def test_gradients_reach_logits_through_gates():
    router = new_router()
    x = seeded(2, 17, DIM).requires_grad_()
    router(x).gates.sum().backward()
    assert router.weight.grad.any()
    assert x.grad.any()
    assert not router.bias.requires_grad


def test_autocast_changes_nothing_but_the_dtype_that_came():
    router, x = new_router().eval(), seeded(2, 17, DIM)
    wanted = router(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = router(x)
    assert torch.equal(found.experts, wanted.experts)
    assert torch.equal(found.gates, wanted.gates)


def test_half_precision():
    router = new_router().bfloat16()
    x = seeded(2, N, DIM).bfloat16()
    for _ in range(5):
        routing = router(x)
    assert routing.gates.dtype == torch.bfloat16
    assert router.bias.dtype == torch.bfloat16
    single = new_router().eval()
    single.weight.data = router.weight.data.float()
    single.bias.copy_(router.bias)
    assert torch.equal(router.eval()(x).experts, single(x.float()).experts)


@pytest.mark.parametrize("training", [True, False])
def test_it_compiles_as_one_graph(training):
    router, x = new_router(capacity=1.25, top_k=2).train(training), seeded(2, 17, DIM)
    real = torch.ones(2, 17, dtype=torch.bool)
    other = copy.deepcopy(router)
    found = torch.compile(router, fullgraph=True, backend="eager")(x, real)
    assert torch.equal(found.experts, other(x, real).experts)
    torch.testing.assert_close(router.bias, other.bias)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"dim": 0}, ValueError, "Router: dim must be at least 1"),
        ({"experts": 2.5}, TypeError, "Router: experts must be a whole number"),
        ({"top_k": 6}, ValueError, "top_k must be at most the number of experts, but top_k=6 and"),
        ({"lam": 2.0}, ValueError, r"Router: lam must be in \[0, 1\]"),
        ({"eps": 0.0}, ValueError, "Router: eps must be positive"),
        ({"decay": 1.0}, ValueError, r"Router: decay must be a number in \[0, 1\)"),
        ({"capacity": -1.0}, ValueError, "Router: capacity must be a positive number"),
        ({"iters": -1}, ValueError, "Router: iters must be at least 0"),
    ],
)
def test_wrong_options_are_one_sentence(options, error, sentence):
    with pytest.raises(error, match=sentence):
        bistoch.nn.Router(**{"dim": DIM, "experts": EXPERTS, **options})


def test_wrong_tokens_are_one_sentence():
    router = new_router()
    with pytest.raises(ValueError, match="Router: x must have 11 features"):
        router(torch.randn(3, 7))
    with pytest.raises(TypeError, match="Router: x must be a floating-point tensor"):
        router(torch.ones(3, DIM).long())
    with pytest.raises(ValueError, match="Router: x must have at least 2 axes"):
        router(torch.randn(DIM))
    with pytest.raises(TypeError, match="Router: mask must be a boolean tensor"):
        router(torch.randn(3, DIM), mask=torch.ones(3))
    with pytest.raises(ValueError, match="Router: x must be on the device of the other"):
        router(torch.randn(3, DIM, device="meta"))
