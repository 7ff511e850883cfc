"""Matching in every precision, and with biases that are very low."""

import pytest
import torch

import bistoch
from functional.matching.match_cases import SLACK_BACKENDS, M, N, every_end, every_form, normal


@every_form
def test_numbers_are_not_rounded_to_single_precision(backend, slack):
    scores = normal(N, M)
    exact = {name: torch.tensor(x, dtype=torch.float64) for name, x in slack.items()}
    found, wanted = (bistoch.match(scores, backend=backend, **given) for given in (slack, exact))
    torch.testing.assert_close(found.log_plan, wanted.log_plan, rtol=0, atol=1e-13)


@every_form
def test_plans_in_half_precision_are_rounded_once(backend, slack):
    scores = normal(N, M, scale=3.0).bfloat16()
    found = bistoch.match(scores, backend=backend, **slack)
    wanted = bistoch.match(scores.double(), backend=backend, **slack)
    for name in ("plan", "rows", "columns"):
        torch.testing.assert_close(
            getattr(found, name).double(), getattr(wanted, name), rtol=5e-3, atol=1e-30
        )


@every_form
@every_end
@pytest.mark.parametrize("low", [-6e3, -1e9, torch.finfo(torch.float32).min])
def test_a_bias_that_forbids_a_whole_row_leaves_it_single(backend, slack, end, low):
    scores, bias = normal(N, M).float(), torch.zeros(N, M)
    bias[2], bias[4, 3] = low, low
    found = bistoch.match(scores, mask=bias, end=end, backend=backend, **slack)
    wanted = bistoch.match(scores, mask=bias == 0, end=end, backend=backend, **slack)
    for name in ("log_plan", "log_rows", "log_columns", "pairs"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))


def test_a_low_bias_is_a_bias_where_scores_make_up_for_it_or_nothing_else_is_left():
    scores, bias = normal(N, M), torch.zeros(N, M, dtype=torch.float64)
    bias[2] = -6e3
    high = scores - bias
    found = bistoch.match(high, mask=bias, row_price=0.4, column_price=0.1)
    wanted = bistoch.match(scores, row_price=0.4, column_price=0.1)
    torch.testing.assert_close(found.log_plan, wanted.log_plan, rtol=0, atol=1e-9)
    # without a price a row may not stay single, and only differences count
    found, wanted = (bistoch.match(scores, mask=x, column_price=0.1) for x in (bias, None))
    torch.testing.assert_close(found.log_plan, wanted.log_plan, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["bin_score", "row_price"])
def test_numbers_are_as_exact_as_the_scores(name):
    scores = torch.randn(5, 3, dtype=torch.float64)
    number, tensor = (
        bistoch.match(scores, **{name: x}).plan
        for x in (0.1, torch.tensor(0.1, dtype=torch.float64))
    )
    torch.testing.assert_close(number, tensor, rtol=1e-14, atol=0)


@pytest.mark.parametrize("slack", [{"bin_score": 0.0}, {"row_price": 0.0, "column_price": 0.0}])
@pytest.mark.parametrize("low", [-1e4, -1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("end", ["rows", "columns"])
def test_a_row_of_low_biases_stays_single(slack, low, end):
    scores = torch.randn(3, 4)
    bias = torch.zeros(3, 4).index_fill(0, torch.tensor(1), low)
    found = bistoch.match(scores, mask=bias, end=end, iters=200, **slack)
    hidden = bistoch.match(scores, mask=bias == 0, end=end, iters=200, **slack)
    torch.testing.assert_close(found.plan, hidden.plan)
    torch.testing.assert_close(found.rows, hidden.rows)


@pytest.mark.parametrize("backend", SLACK_BACKENDS)
def test_a_tolerance_does_not_hide_a_nan(backend):
    scores = torch.randn(5, 4)
    scores[2, 1] = torch.nan
    found = bistoch.match(scores, row_price=0.0, column_price=0.0, tol=0.1, backend=backend)
    assert found.plan.isnan().all()
