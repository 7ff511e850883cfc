"""Bad input raises the documented sentence: operator, argument, expected, received, remedy."""

import inspect

import numpy as np
import pytest
import torch

import bistoch

# shape annotations may be checked by machine while tests run; here the library's own sentences are wanted
attend, plan, potentials, balance, gumbel, softmax, hard, anneal = (
    inspect.unwrap(function)
    for function in (
        bistoch.elastic_attention, bistoch.elastic_plan, bistoch.elastic_potentials, bistoch.balance,
        bistoch.gumbel_balance, bistoch.softmax_attention, bistoch.hard_plan, bistoch.anneal_plan,
    )
)  # fmt: skip

Q, K, V = torch.randn(2, 3, 7, 5), torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 4)


@pytest.mark.parametrize(("change", "error", "sentence"), [
    ({"query": Q[0, 0, 0]}, ValueError, r"query must have at least 2 axes.*its shape is \(5,\)"),
    ({"query": [[1.0]]}, TypeError, r"query must be a torch.Tensor .* it is a list"),
    ({"query": Q.long()}, TypeError, r"query must be a floating-point tensor.*int64.*query.float\(\)"),
    ({"key": K.double()}, TypeError, r"key must have the dtype of query.*float64"),
    ({"key": K[..., :3]}, ValueError, r"same number of features.*query has 5 and key has 3"),
    ({"value": V[..., :9, :]}, ValueError, r"one row per key.*11 keys and 9 values"),
    ({"key": K[:, :2]}, ValueError, r"leading axes .* must broadcast.*query \(2, 3\), key \(2, 2\)"),
    ({"value": V.to("meta")}, ValueError, r"value must be on the device of query, cpu.*meta"),
    ({"lam": 1.5}, ValueError, r"lam must be in \[0, 1\].*it is 1.5"),
    ({"lam": -0.1}, ValueError, r"lam must be in \[0, 1\]"),
    ({"lam": float("nan")}, ValueError, r"lam must be in \[0, 1\].*nan"),
    ({"lam": torch.tensor([0.5, 2.0, 0.1])}, ValueError, r"every entry of lam .* one is 2"),
    ({"lam": torch.tensor([0.5, float("nan"), 0.1])}, ValueError, r"every entry of lam .* one is nan"),
    ({"lam": torch.rand(4)}, ValueError, r"lam must broadcast to the leading axes.*\(4,\)"),
    ({"lam": torch.ones(3, dtype=torch.int64)}, TypeError, r"lam must be a floating-point tensor"),
    ({"lam": "half"}, TypeError, r"lam must be a number or a floating-point tensor.*str"),
    ({"lam": True}, TypeError, r"lam must be a number"),
    ({"eps": 0.0}, ValueError, r"eps must be positive.*hard_plan.*it is 0"),
    ({"eps": -1.0}, ValueError, r"eps must be positive"),
    ({"eps": float("inf")}, ValueError, r"eps must be positive and finite"),
    ({"eps": torch.tensor([1.0, -2.0, 1.0])}, ValueError, r"every entry of eps .* one is -2"),
    ({"omega": 0.0}, ValueError, r"omega must be in \(0, 2\)"),
    ({"omega": 2.0}, ValueError, r"omega must be in \(0, 2\)"),
    ({"omega": float("nan")}, ValueError, r"omega must be in \(0, 2\)"),
    ({"iters": -1}, ValueError, r"iters must be at least 0, but it is -1"),
    ({"iters": 10**30}, ValueError, r"iters must be at most 9223372036854775807, but it is 1e\+30"),
    ({"iters": 2.5}, TypeError, r"iters must be a whole number.*float"),
    ({"tol": 0.0}, ValueError, r"tol must be a positive number.*it is 0"),
    ({"tol": float("nan")}, ValueError, r"tol must be a positive number"),
    ({"scale": float("inf")}, ValueError, r"scale must be a finite number"),
    ({"mask": torch.ones(7, 10, dtype=torch.bool)}, ValueError, r"mask must broadcast to the scores.*\(2, 3, 7, 11\).*\(7, 10\)"),
    ({"mask": torch.ones(5, 2, 3, 7, 11)}, ValueError, r"mask must broadcast to the scores"),
    ({"mask": torch.ones(7, 11, dtype=torch.int64)}, TypeError, r"mask must be a boolean tensor.*int64"),
    ({"key_mask": torch.ones(2, 3, 7, dtype=torch.bool)}, ValueError, r"key_mask must broadcast to \(\*b, m\) = \(2, 3, 11\)"),
    ({"query_mask": torch.ones(2, 7, dtype=torch.bool)}, ValueError, r"query_mask must broadcast to \(\*b, n\) = \(2, 3, 7\)"),
    ({"key_mask": torch.ones(11)}, TypeError, r"key_mask must be a boolean tensor, True where the token is real.*float32"),
    ({"column_mass": torch.zeros(11)}, ValueError, r"column_mass must be positive.*smallest entry is 0.*key_mask"),
    ({"column_mass": torch.ones(7)}, ValueError, r"column_mass must broadcast to \(\*b, m\)"),
    ({"column_mass": torch.full((11,), float("nan"))}, ValueError, r"column_mass must be positive"),
    ({"backend": "gpu"}, ValueError, r"backend must be one of 'auto', 'reference', 'streaming', 'cpu'.*it is 'gpu'"),
])  # fmt: skip
def test_elastic_attention(change, error, sentence):
    arguments = {"query": Q, "key": K, "value": V} | change
    with pytest.raises(error, match=f"^elastic_attention: .*{sentence}"):
        attend(**arguments)


@pytest.mark.parametrize(("call", "error", "sentence"), [
    (lambda: plan(Q, K, lam=2), ValueError, r"^elastic_plan: lam"),
    (lambda: potentials(Q, K, omega=3), ValueError, r"^elastic_potentials: omega"),
    (lambda: balance(Q, eps=-1), ValueError, r"^balance: eps"),
    (lambda: balance(Q[0, 0, 0]), ValueError, r"^balance: scores must have at least 2 axes"),
    (lambda: balance(Q, mask=torch.ones(4, 4)), ValueError, r"^balance: mask must broadcast"),
    (lambda: balance(Q.int()), TypeError, r"^balance: scores must be a floating-point"),
    (lambda: gumbel(Q, noise=float("nan")), ValueError, r"^gumbel_balance: noise"),
    (lambda: softmax(Q, K, V, eps=0.0), ValueError, r"^softmax_attention: eps"),
    (lambda: softmax(Q, K, V, key_mask=torch.ones(3, dtype=torch.bool)), ValueError, r"^softmax_attention: key_mask"),
    (lambda: hard(Q, K[..., :2]), ValueError, r"^hard_plan: query and key must have the same number"),
    (lambda: anneal(Q, K, iters=-3), ValueError, r"^anneal_plan: iters"),
])  # fmt: skip
def test_other_functions(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


@pytest.mark.parametrize("text", [
    "", "elastic(", "elastic(0.5)", "elastic(lam=x)", "elastic(**{'lam': 1})", "a.b", "1",
    "elastic(lam=__import__('os'))", "__import__('os').getcwd()", "elastic(lam=1, lam=0)",
    "elastic(lam={[]: 1})", "elastic; softmax", "[x for x in y]",
])  # fmt: skip
def test_operator_text_that_cannot_be_read(text):
    with pytest.raises(ValueError, match=r"^operator: cannot read .*elastic\(lam=0.5, iters=5\)"):
        bistoch.functional.parse_operator(text, bistoch.OPERATORS)


def test_operator_text_with_an_unknown_name():
    with pytest.raises(ValueError, match=r"unknown name 'sofmax'.*known are softmax, elastic"):
        bistoch.functional.parse_operator("sofmax", bistoch.OPERATORS)


def test_operator_text():
    row, options = bistoch.functional.parse_operator(
        " elastic(lam=0.5, tol=None) ", bistoch.OPERATORS
    )
    assert row is bistoch.OPERATORS["elastic"]
    assert options == {"lam": 0.5, "tol": None}


@pytest.mark.parametrize("backend", ["reference", "streaming", "cpu"])
def test_numbers_of_numpy_are_numbers(backend):
    given = {"lam": 0.75, "eps": 0.5, "omega": 1.25, "tol": 2**-10, "scale": 0.125}
    numbers = {name: np.float32(value) for name, value in given.items()}
    wanted = bistoch.elastic_attention(Q, K, V, iters=200, backend=backend, **given)
    found = bistoch.elastic_attention(Q, K, V, iters=200, backend=backend, **numbers)
    assert torch.equal(found, wanted)
    # in double precision, whatever the number was
    scores, third = Q.double() @ K.double().mT, np.float32(1 / 3)
    wanted = bistoch.balance(scores, eps=float(third), lam=float(third), backend=backend)
    assert torch.equal(bistoch.balance(scores, eps=third, lam=third, backend=backend), wanted)
    with pytest.raises(TypeError, match="lam must be a number or a floating-point tensor"):
        attend(Q, K, V, lam=np.bool_(True))
