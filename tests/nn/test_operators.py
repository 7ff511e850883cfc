import copy
import pickle

import pytest
import torch

import bistoch
from bistoch.nn import Elastic, Hard, OperatorModule, Sinkhorn, Softmax, build_operator


def tokens(*batch, n=7, m=5, d=3, e=2, dtype=torch.float64):
    shapes = (n, d), (m, d), (m, e)
    return [torch.randn(*batch, *shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("name", bistoch.OPERATORS)
def test_every_row_of_the_table_builds_from_its_name_and_attends(name):
    row = bistoch.OPERATORS[name]
    q, k, v = tokens(2, 3, m=7 if row.square else 5)
    real = torch.tensor([True] * 5 + [False] * 2)
    masks = {"query_mask": real, "key_mask": real if row.square else real[1:6]}
    if row.masks == "any":
        masks["mask"] = torch.rand(7, k.shape[-2]) > 0.2
    masks = {} if row.masks == "none" else masks
    module = build_operator(name, heads=3, size=3)
    assert torch.equal(module(q, k, v, **masks), row.attention(q, k, v, **masks))
    assert torch.equal(module.plan(q, k, **masks), row.plan(q, k, **masks))
    # what a layer brings may be written, but nothing that was not asked for
    again = build_operator(repr(module), heads=3, size=3)
    assert repr(again) == repr(module)
    assert repr(module) in (f"{name}()", f"{name}(heads=3, size=3)")
    assert module.causal is row.causal


def test_an_operator_without_a_class_takes_its_options():
    module = build_operator("anneal(iters=13, debias=False)", heads=3)
    q, k, v = tokens()
    assert type(module) is OperatorModule
    assert torch.equal(module(q, k, v), bistoch.anneal_attention(q, k, v, iters=13, debias=False))


def test_a_row_outside_the_table_works():
    row = bistoch.Operator(
        name="mean",
        attention=lambda q, k, v, *, times=1.0, **masks: times * v.mean(-2, keepdim=True),
        plan=lambda q, k, *, times=1.0, **masks: times * torch.ones(7, 5) / 5,
        backends=("torch",), rows_exact=False, columns="free", differentiable=True, causal=False,
        order_free=True, source="here",
    )  # fmt: skip
    q, k, v = tokens()
    torch.testing.assert_close(OperatorModule(row, times=2)(q, k, v), 2 * v.mean(-2, keepdim=True))
    with pytest.raises(TypeError, match="mean: unknown option 'often'"):
        OperatorModule(row, often=2)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Softmax(eps=0.7, scale=0.4), lambda *t: bistoch.softmax_attention(*t, eps=0.7, scale=0.4)),
        (
            Sinkhorn(eps=0.7, omega=1.2, iters=3, scale=0.4, backend="reference"),
            lambda *t: bistoch.sinkhorn_attention(*t, eps=0.7, omega=1.2, iters=3, scale=0.4),
        ),
        (
            Elastic(lam=0.3, eps=0.7, omega=0.8, iters=4, scale=0.4, backend="streaming"),
            lambda *t: bistoch.elastic_attention(
                *t, lam=0.3, eps=0.7, omega=0.8, iters=4, scale=0.4
            ),
        ),
        (Elastic(), lambda *t: bistoch.elastic_attention(*t)),
        (Hard(scale=-1.0), lambda *t: bistoch.hard_attention(*t, scale=-1.0)),
    ],
    # only the module: the text of a function holds its address, and test processes must agree
    ids=lambda value: repr(value) if isinstance(value, torch.nn.Module) else "",
)
def test_named_classes_pass_every_option_on(module, expected):
    q, k, v = tokens(2)
    torch.testing.assert_close(module(q, k, v), expected(q, k, v))
    torch.testing.assert_close(module.plan(q, k) @ v, expected(q, k, v))


def test_hard_passes_on_its_straight_through_gradient():
    q, k, v = tokens(n=5)
    q.requires_grad_()
    assert not Hard()(q, k, v).requires_grad
    found = Hard(straight_through=True, eps=0.5, iters=3)(q, k, v)
    soft = Sinkhorn(eps=0.5, iters=3)(q, k, v)
    assert torch.equal(found, Hard()(q, k, v))
    slopes = [torch.autograd.grad(x.sum(0)[0], q)[0] for x in (found, soft)]
    torch.testing.assert_close(*slopes)


def test_a_tolerance_arrives():
    q, k, v = tokens()
    with pytest.warns(bistoch.ConvergenceWarning, match="above tol=1e-12"):
        Sinkhorn(iters=1, tol=1e-12)(q, k, v)
    with pytest.warns(bistoch.ConvergenceWarning, match="above tol=1e-12"):
        Elastic(iters=1, tol=1e-12)(q, k, v)


@pytest.mark.parametrize(
    "text",
    [
        "softmax()",
        "elastic(lam=0.5, iters=5)",
        "elastic(eps=0.1, backend='reference')",
        "elastic(iters=3, learn='head', heads=4)",
        "hard(straight_through=True)",
        "anneal(iters=7)",
        "orthogonal(method='cayley', ancilla=2)",
        "quantum(ansatz='trotter', layers=2, shots=100)",
        "quantum(layers=1, learn='head', tokens=5, heads=4)",
    ],
)
def test_a_module_prints_as_the_text_that_builds_it(text):
    assert repr(build_operator(text, heads=4)) == text


def test_options_can_be_changed_between_calls():
    q, k, v = tokens()
    module = Elastic(lam=0.0)
    module.lam = 0.6
    assert torch.equal(module(q, k, v), bistoch.elastic_attention(q, k, v, lam=0.6))
    assert repr(module) == "elastic(lam=0.6)"


def test_tensor_options_are_buffers_and_parameters_are_learned():
    q, k, v = tokens(3)
    eps = torch.tensor([0.5, 1.0, 2.0])
    fixed, learned = Softmax(eps=eps), Softmax(eps=torch.nn.Parameter(eps.clone()))
    assert set(fixed.state_dict()) == set(learned.state_dict()) == {"eps"}
    assert not list(fixed.parameters())
    learned(q, k, v).sum().backward()
    assert learned.eps.grad.abs().min() > 0
    assert repr(fixed) == "softmax(eps=<Tensor (3,)>)"
    # a module that moves takes them with it
    assert fixed.to("meta").eps.device.type == "meta"


def test_a_learned_lam_starts_as_exact_softmax():
    q, k, v = tokens(2, 3)
    mask = torch.rand(7, 5) > 0.3
    learned = Elastic(learn="head", heads=3)
    assert learned.lam.tolist() == [0, 0, 0]
    assert torch.equal(learned(q, k, v), Elastic(lam=0.0)(q, k, v))
    torch.testing.assert_close(learned(q, k, v, mask=mask), Softmax()(q, k, v, mask=mask))
    torch.testing.assert_close(learned.plan(q, k, mask=mask), Softmax().plan(q, k, mask=mask))


def test_a_learned_lam_starts_where_it_is_told():
    q, k, v = tokens(2, 3)
    learned = Elastic(lam=0.25, learn="head", heads=3)
    torch.testing.assert_close(learned(q, k, v), Elastic(lam=0.25)(q, k, v))
    each = Elastic(lam=torch.tensor([0.0, 0.5, 1.0]), learn="head", heads=3)
    for head, lam in enumerate([0.0, 0.5, 1.0]):
        torch.testing.assert_close(each(q, k, v)[:, head], Elastic(lam=lam)(q, k, v)[:, head])


@pytest.mark.parametrize("backend", ["reference", "streaming"])
def test_a_learned_lam_moves_towards_what_the_data_wants(backend):
    q, k, v = tokens(2, 3)
    wanted = Elastic(lam=0.7, iters=5)(q, k, v)
    learned = Elastic(learn="head", heads=3, iters=5, backend=backend)
    optimiser = torch.optim.Adam(learned.parameters(), lr=0.05)
    for step in range(60):
        optimiser.zero_grad()
        (learned(q, k, v) - wanted).square().mean().backward()
        if step == 0:
            assert (learned.lam.grad < 0).all()
        optimiser.step()
    torch.testing.assert_close(learned.lam.detach(), torch.full((3,), 0.7), atol=0.05, rtol=0)


@pytest.mark.parametrize(("outside", "used"), [(-0.4, 0.0), (1.3, 1.0)])
def test_a_lam_that_overshot_is_used_clamped_and_returns(outside, used):
    q, k, v = tokens(2, 3)
    learned = Elastic(learn="head", heads=3)
    with torch.no_grad():
        learned.lam.fill_(outside)
    torch.testing.assert_close(learned(q, k, v), Elastic(lam=used)(q, k, v))
    (learned(q, k, v) - Elastic(lam=0.5)(q, k, v)).square().sum().backward()
    # a descent step leads back inside for every head
    assert (learned.lam.grad * (outside - 0.5) > 0).all()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_is_equal_and_independent(copied):
    q, k, v = tokens(2, 3)
    module = Elastic(lam=0.4, learn="head", heads=3, iters=4)
    twin = copied(module)
    assert torch.equal(twin(q, k, v), module(q, k, v))
    with torch.no_grad():
        twin.lam.zero_()
    assert not torch.allclose(twin(q, k, v), module(q, k, v))
    assert repr(twin) == repr(module)


def test_state_dict_round_trip():
    module, fresh = Elastic(lam=0.4, learn="head", heads=3), Elastic(learn="head", heads=3)
    assert list(module.state_dict()) == ["lam"]
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh.lam, module.lam)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "elastic(lam=__import__('os'))",
        "elastic(lam=1 if True else 0)",
        "elastic(0.5)",
        "elastic(*[0.5])",
        "elastic(**{'lam': 0.5})",
        "elastic(lam=0.5)(lam=0.5)",
        "bistoch.elastic(lam=0.5)",
        "elastic(lam=0.5); softmax",
        "lambda: elastic",
        "elastic(lam=0.5",
        "",
    ],
)
def test_a_text_that_is_no_name_with_literals_is_refused(text):
    with pytest.raises(ValueError, match=r"^operator: "):
        build_operator(text, heads=4)


@pytest.mark.parametrize(
    ("operator", "error", "sentence"),
    [
        ("sofmax", ValueError, "operator: unknown name 'sofmax' in 'sofmax'; known are softmax,"),
        ("elastic(lan=1)", TypeError, "elastic: unknown option 'lan'; it takes lam, eps, omega,"),
        ("softmax(iters=1)", TypeError, "softmax: unknown option 'iters'; it takes eps, scale"),
        ("anneal(lam=1)", TypeError, "anneal: unknown option 'lam'; it takes eps, iters, debias,"),
        ("softmax(heads=4)", TypeError, "softmax: unknown option 'heads'"),
        ("elastic(mask=None)", TypeError, "elastic: unknown option 'mask'"),
        ("elastic(learn='all')", ValueError, "Elastic: learn must be one of 'none', 'head', but"),
        ("elastic(learn='head', heads=3)", ValueError, "was made for 3 heads, but the layer has 4"),
        ("elastic(learn='head', lam=2)", ValueError, "Elastic: lam must be in [0, 1]"),
        (Elastic(learn="head", heads=8), ValueError, "was made for 8 heads, but the layer has 4"),
        (None, TypeError, "operator: expected a text such as"),
        (torch.nn.Identity(), TypeError, "a module with a plan such as"),
        (bistoch.elastic_attention, TypeError, "but it is a function"),
    ],
)
def test_a_wrong_operator_is_refused_in_words(operator, error, sentence):
    with pytest.raises(error) as caught:
        build_operator(operator, heads=4)
    assert sentence in str(caught.value)


def test_learning_per_head_needs_the_heads():
    with pytest.raises(ValueError, match="Elastic: learn='head' needs heads"):
        Elastic(learn="head")
    with pytest.raises(ValueError, match="Elastic: heads must be at least 1, but it is 0"):
        Elastic(learn="head", heads=0)
    with pytest.raises(TypeError, match="Elastic: heads must be a whole number"):
        Elastic(learn="head", heads=2.0)


def test_a_wrong_value_is_refused_by_the_operator():
    q, k, v = tokens()
    with pytest.raises(ValueError, match=r"elastic_attention: lam must be in \[0, 1\]"):
        Elastic(lam=1.5)(q, k, v)
