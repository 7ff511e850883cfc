"""Padding that is told for keys alone: one warning with the remedy, where rows feel each other."""

import warnings

import pytest
import torch

import bistoch

B, H, N, D = 2, 3, 7, 5
REAL = torch.arange(N) < torch.tensor([[N], [N - 3]])
KEYS = REAL[:, None, None, :]
HIDDEN = torch.zeros(KEYS.shape).masked_fill(~KEYS, torch.finfo(torch.float32).min)

# rows that stand alone, or whose query t and key t are one token anyway
HARMLESS = {
    row.name
    for row in bistoch.OPERATORS.values()
    if row.rows_stand_alone or (row.always_causal and row.columns == "free")
}

# the others compare the counts of real queries and keys, and refuse
every_operator = pytest.mark.parametrize(
    "operator", [row for row in bistoch.OPERATORS.values() if row.causal or not row.square],
    ids=lambda row: row.name,
)  # fmt: skip


def tokens():
    return torch.randn(3, B, H, N, D).unbind()


def small(operator):
    # columns that are free would connect no rows
    return dict(operator.small) | ({"lam": 0.5} if operator.static else {})


def halves(operator):
    """The ways to tell half of the padding that an operator takes."""
    ways = {"key_mask": {"key_mask": REAL[:, None]}}
    if operator.masks in ("any", "keys"):
        ways |= {"boolean": {"mask": KEYS}, "bias": {"mask": HIDDEN}}
    if operator.masks == "any":
        ways |= {"view": {"mask": KEYS.expand(B, 1, N, N)}}
    return ways


@every_operator
def test_half_a_padding_is_told_where_it_matters(operator):
    options = small(operator)
    for way, half in halves(operator).items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            operator.attention(*tokens(), **half, **options)
            operator.plan(*tokens()[:2], **half, **options)
        of_causal = operator.name == "causal_elastic" and way == "key_mask"
        expected = 0 if operator.name in HARMLESS or of_causal else 2
        assert len(caught) == expected, way
        for warning in caught:
            assert warning.category is bistoch.PaddingWarning
            assert warning.filename == __file__
            assert "pass both query_mask and key_mask" in str(warning.message)


@every_operator
def test_the_remedies_are_heard(operator):
    # warnings are errors in tests
    options, everybody = small(operator), torch.ones(N, dtype=torch.bool)
    both = {"query_mask": REAL[:, None], "key_mask": REAL[:, None]}
    q, k, v = tokens()
    result = operator.attention(q, k, v, **both, **options)
    if operator.name not in ("mixing", "monarch", "elastic_monarch"):
        short = [x[1, :, : N - 3] for x in (q, k, v)]
        alone = operator.attention(*short, **options)
        torch.testing.assert_close(result[1, :, : N - 3], alone)
    for half in halves(operator).values():
        operator.attention(q, k, v, **half | {"query_mask": everybody}, **options)


def test_nothing_is_said_where_nothing_is_forgotten():
    q, k, v = tokens()
    pairs = torch.rand(N, N) > 0.3
    for options in (
        {"mask": pairs},
        {"mask": torch.randn(1, N)},  # a bias that hides nothing
        {"mask": torch.full((1, N), -1e9)},
        {"mask": torch.ones(N, 1, dtype=torch.bool)},
        {"mask": KEYS, "lam": 0.0},
        {"mask": KEYS, "query_mask": REAL[:, None]},
    ):
        bistoch.elastic_attention(q, k, v, **options)
    # as many queries as keys are a sign of self-attention, and there is no other
    bistoch.elastic_attention(q[..., :5, :], k, v, mask=KEYS)
    bistoch.balance(torch.randn(N, 1).expand(N, N).mT)
    compiled = torch.compile(bistoch.elastic_attention, fullgraph=True, backend="eager")
    compiled(q, k, v, mask=KEYS)


def test_balance_is_told_too_and_a_loop_once():
    scores = torch.randn(B, N, N)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            bistoch.balance(scores, key_mask=REAL)
    (warning,) = caught
    assert warning.category is bistoch.PaddingWarning
