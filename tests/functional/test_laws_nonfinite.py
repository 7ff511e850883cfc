"""The law that a NaN or an infinity in an input shows, for every operator and backend.

Every row that depends on it is NaN, so are the gradients, and nothing else has changed: not the
rows before it if the operator is causal, not the neighbours in the batch.
"""

import functools
import itertools

import pytest
import torch

import bistoch
from bistoch.functional import _nonfinite
from bistoch.functional.inputs import options as option_checks
from bistoch.functional.quantum import theta_length

N, M, D, E = 7, 11, 5, 3
# the problem and the token that are broken
HERE, TOKEN = 1, 3
BROKEN = (torch.nan, torch.inf, -torch.inf)


def cases():
    for name, row in bistoch.OPERATORS.items():
        for backend in row.backends if "backend" in row.options() else (None,):
            title = name if backend is None else f"{name}-{backend}"
            marks = [pytest.mark.slow] if backend == "triton" else []
            yield pytest.param(row, backend, id=title, marks=marks)


every_backend = pytest.mark.parametrize(("operator", "backend"), list(cases()))


@pytest.fixture(params=["at hand", "not at hand"])
def values(request, monkeypatch):
    """Whether values may be read, or not, as in compiled graphs and on accelerators."""
    if request.param == "not at hand":
        monkeypatch.setattr(_nonfinite, "_is_at_hand", lambda tensors: False)


def parts(operator, backend, **more):
    options = dict(operator.small) | ({} if backend is None else {"backend": backend}) | more
    options |= {"iters": 2} if "iters" in operator.options() else {}
    return (functools.partial(part, **options) for part in (operator.attention, operator.plan))


def tokens(operator, dtype=torch.float64):
    m = N if operator.square else M
    sizes = ((N, D), (m, D), (m, E))
    return [torch.randn(2, *size, dtype=dtype) for size in sizes]


def rows_that_depend(operator, first, alone):
    """Rows of the broken problem: one that stands alone, the first and all later ones, or all."""
    rows = torch.zeros(N, dtype=torch.bool)
    if operator.always_causal:
        rows[first:] = True
    elif operator.rows_stand_alone and alone:
        rows[first] = True
    else:
        rows[:] = True
    return rows


def assert_shows(found, wanted, rows):
    assert found[HERE, rows].isnan().any(-1).all()
    torch.testing.assert_close(found[HERE, ~rows], wanted[HERE, ~rows])
    torch.testing.assert_close(found[1 - HERE], wanted[1 - HERE])


@every_backend
@pytest.mark.usefixtures("values")
def test_a_broken_token_shows(operator, backend):
    attend, plan = parts(operator, backend)
    clean = tokens(operator)
    wanted, wanted_plan = attend(*clean), plan(*clean[:2])
    for place, number in itertools.product(range(3), BROKEN):
        broken = [x.clone() for x in clean]
        broken[place][HERE, TOKEN, -1] = number
        rows = rows_that_depend(operator, TOKEN, alone=place == 0)
        if operator.static and place < 2:
            # the plan does not look at them
            rows[:] = False
        assert_shows(attend(*broken), wanted, rows)
        if place < 2:
            assert_shows(plan(*broken[:2]), wanted_plan, rows)


@every_backend
@pytest.mark.usefixtures("values")
def test_a_broken_bias_shows(operator, backend):
    if operator.masks not in ("any", "keys"):
        pytest.skip("it takes no mask")
    attend, plan = parts(operator, backend)
    q, k, v = tokens(operator)
    shared = operator.masks == "keys"
    bias = torch.zeros(2, 1 if shared else N, k.shape[1], dtype=q.dtype)
    # minus infinity forbids a pair, and is not broken
    bias[..., 5] = -torch.inf
    row = 0 if shared else 4
    rows = rows_that_depend(operator, TOKEN if shared else row, alone=True)
    if operator.always_causal and shared:
        # a mask on the key hides the query too
        rows[5] = False
    wanted, wanted_plan = attend(q, k, v, mask=bias), plan(q, k, mask=bias)
    for number in (torch.nan, torch.inf):
        wrong = bias.clone()
        wrong[HERE, row, TOKEN] = number
        assert_shows(attend(q, k, v, mask=wrong), wanted, rows)
        assert_shows(plan(q, k, mask=wrong), wanted_plan, rows)
    if operator.always_causal and not shared:
        wrong = bias.clone()
        wrong[HERE, 2, 4] = torch.nan
        torch.testing.assert_close(attend(q, k, v, mask=wrong), wanted)


@every_backend
@pytest.mark.usefixtures("values")
def test_what_is_masked_breaks_nothing(operator, backend):
    attend, plan = parts(operator, backend)
    clean = tokens(operator)
    real = [torch.ones(2, x.shape[1], dtype=torch.bool) for x in clean[:2]]
    for mask in real:
        mask[HERE, TOKEN] = False
    hidden = {"query_mask": real[0], "key_mask": real[1]}
    wanted, wanted_plan = attend(*clean, **hidden), plan(*clean[:2], **hidden)
    for number in BROKEN:
        broken = [x.clone() for x in clean]
        for x in broken:
            x[HERE, TOKEN] = number
        torch.testing.assert_close(attend(*broken, **hidden), wanted)
        torch.testing.assert_close(plan(*broken[:2], **hidden), wanted_plan)


@every_backend
@pytest.mark.usefixtures("values")
def test_padded_queries_do_not_show_a_broken_key(operator, backend):
    attend, plan = parts(operator, backend)
    broken = tokens(operator)
    broken[1][HERE, TOKEN, 0] = broken[2][HERE, TOKEN, 0] = torch.nan
    real = [torch.ones(2, x.shape[1], dtype=torch.bool) for x in broken[:2]]
    # equal in number on both sides, as some operators want it
    for mask in real:
        mask[:, -1] = False
    hidden = {"query_mask": real[0], "key_mask": real[1]}
    for rows in (attend(*broken, **hidden), plan(*broken[:2], **hidden)):
        assert not rows[:, -1].any()


@every_backend
@pytest.mark.usefixtures("values")
def test_a_pair_that_is_masked_breaks_nothing(operator, backend):
    if not operator.rows_stand_alone:
        pytest.skip("rows depend on each other")
    attend, plan = parts(operator, backend)
    clean = tokens(operator)
    mask = torch.ones(N, M, dtype=torch.bool)
    mask[:4, TOKEN] = False
    broken = [clean[0], clean[1].clone(), clean[2].clone()]
    broken[1][HERE, TOKEN, 0] = broken[2][HERE, TOKEN, 0] = torch.nan
    rows = torch.arange(N) >= 4
    assert_shows(attend(*broken, mask=mask), attend(*clean, mask=mask), rows)
    assert_shows(plan(*broken[:2], mask=mask), plan(*clean[:2], mask=mask), rows)


@every_backend
@pytest.mark.usefixtures("values")
def test_scores_that_overflow_show(operator, backend):
    if "overflow" in operator.exceptions:
        pytest.skip(operator.exceptions["overflow"])
    attend, plan = parts(operator, backend)
    rows = rows_that_depend(operator, TOKEN, alone=True)
    if operator.name == "delta":
        # the next dense row does not know this score
        rows[6] = False
    large = tokens(operator, torch.float32)
    # tokens meet each other, or pivots of size one
    size = 1e35 if operator.name == "lowrank" else 1e25
    for sign in (1, -1):
        large[0][HERE, TOKEN], large[1][HERE, TOKEN] = size, sign * size
        # the longer precision has room for them
        long = [x.double() for x in large]
        assert_shows(attend(*large), attend(*long).float(), rows)
        assert_shows(plan(*large[:2]), plan(*long[:2]).float(), rows)


@every_backend
def test_gradients_of_broken_rows_show(operator, backend):
    attend, _ = parts(operator, backend)
    clean = tokens(operator)
    wanted = gradients(attend, clean)
    for place in range(3):
        broken = [x.clone() for x in clean]
        broken[place][HERE, TOKEN, 0] = torch.nan
        found = gradients(attend, broken)
        for name, one, other in zip(("query", "key", "value"), found, wanted, strict=True):
            if one is not None:
                torch.testing.assert_close(one[1 - HERE], other[1 - HERE])
                healthy = operator.static and place < 2
                assert healthy or not one[HERE].isfinite().all(), name


@every_backend
def test_a_broken_gradient_goes_on(operator, backend):
    attend, _ = parts(operator, backend)
    leaves, arriving = tokens(operator), torch.ones(2, N, E, dtype=torch.float64)
    wanted = gradients(attend, leaves, arriving)
    for number in (torch.nan, torch.inf):
        arriving[HERE, TOKEN] = number
        for one, other in zip(gradients(attend, leaves, arriving), wanted, strict=True):
            if one is not None:
                assert not one[HERE].isfinite().all()
                torch.testing.assert_close(one[1 - HERE], other[1 - HERE])


def gradients(attend, leaves, arriving=None):
    leaves = [x.detach().requires_grad_() for x in leaves]
    result = attend(*leaves)
    arriving = torch.ones_like(result) if arriving is None else arriving
    return torch.autograd.grad(result, leaves, arriving, allow_unused=True)


@every_backend
def test_a_broken_option_is_refused_or_shows(operator, backend, monkeypatch):
    if operator.name == "hard":
        pytest.skip("its options are those of the gradient")
    leaves, at_hand = tokens(operator), option_checks.values_are_at_hand
    fine = torch.full((2,), 0.5, dtype=torch.float64)
    wrong = fine.clone()
    wrong[HERE] = torch.nan
    for option in {"lam", "eps", "omega", "tau", "logit", "shift"} & set(operator.options()):
        monkeypatch.setattr(option_checks, "values_are_at_hand", at_hand)
        with pytest.raises((ValueError, TypeError), match=rf"{option} must be"):
            next(parts(operator, backend, **{option: wrong}))(*leaves)
        # where a compiler or an accelerator does not let values be read
        monkeypatch.setattr(option_checks, "values_are_at_hand", lambda tensor: False)
        monkeypatch.setattr(_nonfinite, "_is_at_hand", lambda tensors: False)
        found, wanted = (
            next(parts(operator, backend, **{option: x}))(*leaves) for x in (wrong, fine)
        )
        torch.testing.assert_close(found[1 - HERE], wanted[1 - HERE])
        assert found[HERE].isnan().any(-1).all(), option


@pytest.mark.parametrize("number", BROKEN)
def test_broken_parameters_of_operators_show(number):
    q, k, v = torch.randn(3, 2, N, D, dtype=torch.float64).unbind()
    directions = torch.randn(2, 4, D, dtype=torch.float64)
    directions[HERE, 2, 1] = number
    for eps in (0.0, 0.5):
        found = bistoch.sliced_attention(q, k, v, directions=directions, eps=eps)
        assert found[HERE].isnan().all()
        assert found[1 - HERE].isfinite().all()
        assert bistoch.sliced_plan(q, k, directions=directions, eps=eps)[HERE].isnan().all()
    theta = torch.rand(2, theta_length(3, ancilla=1, layers=2, ansatz="simple")).double()
    theta[HERE, 3] = number
    circuit = {"theta": theta, "ancilla": 1, "layers": 2, "ansatz": "simple"}
    for shots in (None, 5):
        found = bistoch.quantum_attention(q, k, v, shots=shots, **circuit)
        assert found[HERE].isnan().all()
        assert found[1 - HERE].isfinite().all()
        assert bistoch.quantum_plan(q, k, shots=shots, **circuit)[HERE].isnan().all()


def test_broken_tokens_are_not_drawn_from():
    q, k, v = torch.randn(3, 2, N, D, dtype=torch.float64).unbind()
    q[HERE, TOKEN, 0] = torch.nan
    found = bistoch.quantum_attention(q, k, v, shots=7)
    assert found[HERE].isnan().all()
    assert found[1 - HERE].isfinite().all()
