"""A row of OPERATORS is all that is known of an operator: names and laws follow from it."""

import inspect
from itertools import product

import pytest
import torch

import bistoch
from bistoch.functional.precision import full_precision, working_dtype
from bistoch.functional.problem import row_softmax
from bistoch.functional.rowwise import weigh_rows
from functional import law_cases, test_laws


@full_precision
def bounded_attention(query, key, value, *, eps=1.0, mask=None, query_mask=None, key_mask=None):
    work = working_dtype(query.dtype)
    options = {"eps": eps, "mask": mask, "query_mask": query_mask, "key_mask": key_mask}
    plan = bounded_plan(query.to(work), key.to(work), **options)
    seen = plan.detach().any(-2)[..., None]
    return (plan @ value.to(work).masked_fill(~seen, 0)).to(query.dtype)


@full_precision
def bounded_plan(query, key, *, eps=1.0, mask=None, query_mask=None, key_mask=None):
    """The softmax of scores in [-1, 1]: a new operator in a few lines."""
    return weigh_rows("bounded_plan", _weigh, query, key, eps, mask, query_mask, key_mask, None)


def _weigh(scores):
    return row_softmax(torch.where(scores == -torch.inf, scores, scores.tanh()))


ROW = bistoch.Operator(
    name="bounded",
    attention=bounded_attention,
    plan=bounded_plan,
    columns="free",
    causal=True,
    order_free=True,
    source="this test",
    exceptions={"permutation": "scores are at most one"},
)
LAWS = {
    name: law
    for name, law in inspect.getmembers(test_laws, inspect.isfunction)
    if name.startswith("test_") and "operator" in inspect.signature(law).parameters
}


@pytest.mark.parametrize("name", sorted(LAWS))
def test_laws_need_nothing_but_the_row(name, monkeypatch):
    monkeypatch.setattr(bistoch, "OPERATORS", {**bistoch.OPERATORS, "bounded": ROW})
    marks = [mark.args for mark in LAWS[name].pytestmark if mark.name == "parametrize"]
    others = [(names, values) for names, values in marks if names != "operator"]
    for values in product(*(values for _, values in others)):
        given = {}
        for (names, _), value in zip(others, values, strict=True):
            given |= {names: value} if isinstance(names, str) else zip(names, value, strict=True)
        LAWS[name](operator=law_cases.small(ROW), **given)


def test_layers_take_a_row():
    module = bistoch.nn.OperatorModule(ROW, eps=0.5)
    x = torch.randn(2, 7, 8)
    assert bistoch.nn.Attention(8, heads=2, operator=module)(x).shape == x.shape
    assert repr(module) == "bounded(eps=0.5)"


def test_names_of_the_package_follow_the_rows():
    for name, row in bistoch.OPERATORS.items():
        for part in ("attention", "plan"):
            assert getattr(bistoch, f"{name}_{part}") is getattr(row, part)
            assert f"{name}_{part}" in dir(bistoch)


def test_options_for_few_tokens_and_exceptions_are_known():
    for row in bistoch.OPERATORS.values():
        assert set(row.small) <= set(row.options()), row.name
        assert set(row.exceptions) <= {"permutation", "identical keys", "overflow"}, row.name
