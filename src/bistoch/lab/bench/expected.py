"""The expected results in float64, with which every contender is verified before it is timed."""

import hashlib
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bistoch.flows import heat_step
from bistoch.functional import (
    OPERATORS,
    ConvergenceWarning,
    Operator,
    balance,
    causal_elastic_attention,
    elastic_attention,
)
from bistoch.lab.bench.cases import COARSE, EPS, Case, Direction, Setting
from bistoch.lab.files import write_whole

# the largest error of an output or a gradient, as a share of the largest expected entry
TOLERANCE = 1e-5
# plans with more entries in all are verified on their first and last problem
VERIFIED_ENTRIES = 1 << 22
# what the reference may keep of one problem; above it the float64 result is streamed
REFERENCE_BYTES = 2 << 30
# a contender on another way to the limit must come as close to it as we do, give or take a quarter
LIMIT_SLACK = 1.25
LIMIT_ERROR = 1e-6
# the largest error of the displacement of a heat step
HEAT_ERROR = 1e-3
# the expected result of an operator is named "hard plan": its plan, times values; or "delta
# itself": the same, and where the plan is too large, what the operator returns in float64
PLAN, ITSELF = " plan", " itself"
# tokens on which a way to the expected result is verified that keeps no matrices
SHORT = 512
# what copies of all tokens do not change
REPEATABLE = ("softmax", "elastic", "elastic coarse")
NAMES = ("output", "query gradient", "key gradient", "value gradient")


class Expected(NamedTuple):
    """The exact result, then its exact gradients if asked for, of some of the problems."""

    tensors: tuple[Tensor, ...]
    problems: tuple[int, ...]
    verified_by: str
    # how far the result itself is from the limit of many iterations
    distance: float = 0.0


class Check(NamedTuple):
    """The largest error of each tensor as a share of its largest entry, and what is allowed."""

    errors: dict[str, float]
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether all errors are small; a NaN is not."""
        return all(error <= self.allowed for error in self.errors.values())


class ExpectedResults:
    """Expected results, computed once and kept in a folder that all processes of a run share.

    Args:
        folder: where to keep them.

    >>> import tempfile
    >>> case = Case("n=4", "attention", (1, 2, 4, 3), "random")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = ExpectedResults(Path(folder)).get(case, "softmax", Setting(), "forward")
    >>> found.verified_by, [tuple(tensor.shape) for tensor in found.tensors]
    ('reference in float64', [(2, 4, 3)])
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def get(self, case: Case, name: str, setting: Setting, direction: Direction) -> Expected:
        """The expected result; `name` is a `Contender.expected`, "elastic" or "hard plan"."""
        key = hashlib.sha256(repr((case, name, setting, direction)).encode()).hexdigest()
        path = self._folder / f"{key[:24]}.pt"
        if path.exists():
            return Expected(*torch.load(path))
        found = _solve(case, name, setting, direction)
        content = io.BytesIO()
        torch.save(tuple(found), content)
        write_whole(path, content.getvalue())
        return found


def check_results(expected: Expected, results: Sequence[Tensor]) -> Check:
    """Compare the results of a contender with the expected ones.

    >>> expected = Expected((torch.ones(1, 2, 2),), (1,), "reference")
    >>> [check_results(expected, [x * torch.ones(3, 2, 2)]).passed for x in (1, 0)]
    [True, False]
    """
    errors = {}
    for name, right, found in zip(NAMES, expected.tensors, results, strict=False):
        mine = found.reshape(-1, *found.shape[-2:])[list(expected.problems)].double()
        errors[name] = ((mine - right).abs().max() / right.abs().max().clamp_min(1e-30)).item()
    return Check(errors, max(TOLERANCE, LIMIT_SLACK * expected.distance))


def _solve(case: Case, name: str, setting: Setting, direction: Direction) -> Expected:
    if name == "heat":
        x = case.particles()
        right = heat_step(x, EPS[case.scores], tol=1e-8) - x
        return Expected((right[None],), (0,), "heat_step in float64", HEAT_ERROR / LIMIT_SLACK)
    if case.distinct is not None and name in REPEATABLE:
        once = _solve(case.once(), name, setting, direction)
        times = case.n // case.distinct
        return once._replace(tensors=tuple(x.repeat(1, times, 1) for x in once.tensors))
    entries = case.n * case.n
    problems = tuple(range(case.problems))
    if len(problems) * entries > VERIFIED_ENTRIES:
        problems = tuple(sorted({0, len(problems) - 1}))
    backward = direction != "forward"
    bytes_each = verification_bytes(case, name, setting, direction)
    # an operator has one plan; elastic attention can be streamed instead, and others can be asked
    # in float64 themselves
    fits = bytes_each <= REFERENCE_BYTES or name.endswith(PLAN)
    backend = "reference" if fits else ITSELF if name.endswith(ITSELF) else "streaming"
    at_once = max(1, REFERENCE_BYTES // bytes_each)
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (*case.inputs(), case.cotangent())]
    pieces, distances = [], [0.0]
    for start in range(0, len(problems), at_once):
        some = list(problems[start : start + at_once])
        *inputs, cotangent = (x[some].double().requires_grad_(backward) for x in flat)
        output = _compute(name, inputs, setting, backend)
        grads: tuple[Tensor, ...] = ()
        if backward:
            grads = torch.autograd.grad(output, inputs, cotangent, materialize_grads=True)
        result = output.detach()
        if name == "limit":
            distances.append(_distance(inputs, result, setting))
        pieces.append((result, *grads))
        if backend != "reference":
            _verify_streaming(name, inputs, setting, backend)
    tensors = tuple(torch.cat(piece) for piece in zip(*pieces, strict=True))
    source = backend
    if name.endswith((PLAN, ITSELF)):
        source = "its own plan" if fits else f"itself, and its own plan of {SHORT} tokens,"
    return Expected(tensors, problems, f"{source} in float64", max(distances))


def verification_bytes(case: Case, name: str, setting: Setting, direction: Direction) -> int:
    """About what the expected result of one problem takes if it is computed with whole matrices.

    >>> case = Case("n=4", "attention", (1, 2, 4, 3), "random")
    >>> verification_bytes(case, "elastic", Setting(), "forward")
    640
    """
    iters = setting.iters
    if name.endswith((PLAN, ITSELF)):
        # an operator is verified with its default options
        iters = _operator(name).options().get("iters", 0)
    # measured: the graph of the reference keeps two matrices per iteration
    return 8 * case.n**2 * (5 if direction == "forward" else 2 * iters + 8)


def _compute(name: str, inputs: Sequence[Tensor], setting: Setting, backend: str) -> Tensor:
    lam, iters = setting.lam, setting.iters
    if len(inputs) == 1:
        return balance(inputs[0], lam=lam, iters=iters, backend=backend)
    if name == "softmax":
        lam, iters = 0.0, 0
    elif name == "limit":
        return _limit(inputs, setting)
    elif name.startswith("causal "):
        lam = 0.0 if name == "causal softmax" else 1.0
        return causal_elastic_attention(*inputs, lam=lam, backend=backend)
    elif name == "elastic coarse":
        return elastic_attention(*inputs, lam=lam, iters=iters, coarse=COARSE, backend=backend)
    elif name != "elastic":
        if backend == ITSELF:
            return _operator(name).attention(*inputs)
        return _operator(name).plan(*inputs[:2]) @ inputs[2]
    return elastic_attention(*inputs, lam=lam, iters=iters, backend=backend)


def _operator(name: str) -> Operator:
    return OPERATORS[name.removesuffix(PLAN).removesuffix(ITSELF)]


def _limit(inputs: Sequence[Tensor], setting: Setting) -> Tensor:
    """Where the iterations end."""
    with warnings.catch_warnings():
        # near enough after so many: the distance asked for is far larger than what is left
        warnings.simplefilter("ignore", ConvergenceWarning)
        return elastic_attention(
            *inputs, lam=setting.lam, iters=1000, tol=LIMIT_ERROR, backend="streaming"
        )


def _distance(inputs: Sequence[Tensor], limit: Tensor, setting: Setting) -> float:
    reached = elastic_attention(*inputs, lam=setting.lam, iters=setting.iters, backend="streaming")
    return ((reached - limit).abs().max() / limit.abs().max()).item()


def _verify_streaming(name: str, inputs: Sequence[Tensor], setting: Setting, backend: str) -> None:
    """Where the reference does not fit, verify the backend used instead on the first tokens."""
    first = [x[:, :SHORT].detach() for x in inputs]
    right = _compute(name, first, setting, "reference")
    if not torch.allclose(_compute(name, first, setting, backend), right, rtol=0, atol=1e-10):
        how = "its result" if backend == ITSELF else f"the {backend} backend"
        raise RuntimeError(f"{how} in float64 does not agree with the reference")
