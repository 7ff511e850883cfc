"""The right answers in float64, against which every contender is proven before it is timed."""

import hashlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bistoch.functional import (
    OPERATORS,
    ConvergenceWarning,
    balance,
    causal_elastic_attention,
    elastic_attention,
)
from bistoch.lab.bench.cases import Case, Direction, Setting

# the largest error of an output or a gradient, as a share of the largest entry of the right answer
TOLERANCE = 1e-5
# plans with more entries in all are proven on their first and last problem
PROVEN_ENTRIES = 1 << 22
# what the reference may keep of one problem; above it the float64 answer is streamed
REFERENCE_BYTES = 2 << 30
# a contender on another way to the limit must come as close to it as we do, give or take a quarter
LIMIT_SLACK = 1.25
LIMIT_ERROR = 1e-6
# how the truth of an operator's attention is named: "hard plan" is the plan of hard, times values
PLAN = " plan"
NAMES = ("output", "query gradient", "key gradient", "value gradient")


class Answer(NamedTuple):
    """The exact result, then its exact gradients if asked for, of some of the problems."""

    tensors: tuple[Tensor, ...]
    problems: tuple[int, ...]
    proved_by: str
    # how far the result itself is from the limit of many iterations
    distance: float = 0.0


class Verdict(NamedTuple):
    """The largest error of each tensor as a share of its largest entry, and what is allowed."""

    errors: dict[str, float]
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether all errors are small; a NaN is not."""
        return all(error <= self.allowed for error in self.errors.values())


class Answers:
    """Right answers, computed once and kept in a folder that all processes of a run share.

    Args:
        folder: where to keep them.

    >>> import tempfile
    >>> case = Case("n=4", "attention", (1, 2, 4, 3), "random")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     answer = Answers(Path(folder)).get(case, "softmax", Setting(), "forward")
    >>> answer.proved_by, [tuple(tensor.shape) for tensor in answer.tensors]
    ('reference in float64', [(2, 4, 3)])
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def get(self, case: Case, truth: str, setting: Setting, direction: Direction) -> Answer:
        """The answer; `truth` is that of a `Contender`, "elastic" or "hard plan" for example."""
        key = hashlib.sha256(repr((case, truth, setting, direction)).encode()).hexdigest()
        path = self._folder / f"{key[:24]}.pt"
        if path.exists():
            return Answer(*torch.load(path))
        answer = _solve(case, truth, setting, direction)
        part = path.with_suffix(f".{os.getpid()}")
        torch.save(tuple(answer), part)
        os.replace(part, path)
        return answer


def judge(answer: Answer, results: Sequence[Tensor]) -> Verdict:
    """Compare the results of a contender with the right answer.

    >>> answer = Answer((torch.ones(1, 2, 2),), (1,), "reference")
    >>> judge(answer, [torch.ones(3, 2, 2)]).passed, judge(answer, [torch.zeros(3, 2, 2)]).passed
    (True, False)
    """
    errors = {}
    for name, right, found in zip(NAMES, answer.tensors, results, strict=False):
        mine = found.reshape(-1, *found.shape[-2:])[list(answer.problems)].double()
        errors[name] = ((mine - right).abs().max() / right.abs().max().clamp_min(1e-30)).item()
    return Verdict(errors, max(TOLERANCE, LIMIT_SLACK * answer.distance))


def _solve(case: Case, truth: str, setting: Setting, direction: Direction) -> Answer:
    entries = case.n * case.n
    problems = tuple(range(case.problems))
    if len(problems) * entries > PROVEN_ENTRIES:
        problems = tuple(sorted({0, len(problems) - 1}))
    backward = direction != "forward"
    bytes_each = proof_bytes(case, truth, setting, direction)
    # an operator has one plan; only the elastic truth has someone to stand in for it
    fits = bytes_each <= REFERENCE_BYTES or truth.endswith(PLAN)
    backend = "reference" if fits else "streaming"
    at_once = max(1, REFERENCE_BYTES // bytes_each)
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (*case.inputs(), case.cotangent())]
    pieces, distances = [], [0.0]
    for start in range(0, len(problems), at_once):
        some = list(problems[start : start + at_once])
        *inputs, cotangent = (x[some].double().requires_grad_(backward) for x in flat)
        output = _compute(truth, inputs, setting, backend)
        grads: tuple[Tensor, ...] = ()
        if backward:
            grads = torch.autograd.grad(output, inputs, cotangent, materialize_grads=True)
        result = output.detach()
        if truth == "limit":
            distances.append(_distance(inputs, result, setting))
        pieces.append((result, *grads))
        if backend != "reference":
            _check_stand_in(truth, inputs, setting, backend)
    tensors = tuple(torch.cat(piece) for piece in zip(*pieces, strict=True))
    prover = "its own plan" if truth.endswith(PLAN) else backend
    return Answer(tensors, problems, f"{prover} in float64", max(distances))


def proof_bytes(case: Case, truth: str, setting: Setting, direction: Direction) -> int:
    """About what the answer to one problem takes if it is computed with whole matrices.

    >>> case = Case("n=4", "attention", (1, 2, 4, 3), "random")
    >>> proof_bytes(case, "elastic", Setting(), "forward")
    640
    """
    iters = setting.iters
    if truth.endswith(PLAN):
        # an operator is proven with its default options
        iters = OPERATORS[truth.removesuffix(PLAN)].options().get("iters", 0)
    # measured: the graph of the reference keeps two matrices per iteration
    return 8 * case.n**2 * (5 if direction == "forward" else 2 * iters + 8)


def _compute(truth: str, inputs: Sequence[Tensor], setting: Setting, backend: str) -> Tensor:
    lam, iters = setting.lam, setting.iters
    if len(inputs) == 1:
        return balance(inputs[0], lam=lam, iters=iters, backend=backend)
    if truth == "softmax":
        lam, iters = 0.0, 0
    elif truth == "limit":
        return _limit(inputs, setting)
    elif truth.startswith("causal "):
        lam = 0.0 if truth == "causal softmax" else 1.0
        return causal_elastic_attention(*inputs, lam=lam, backend=backend)
    elif truth != "elastic":
        return OPERATORS[truth.removesuffix(PLAN)].plan(*inputs[:2]) @ inputs[2]
    return elastic_attention(*inputs, lam=lam, iters=iters, backend=backend)


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


def _check_stand_in(truth: str, inputs: Sequence[Tensor], setting: Setting, backend: str) -> None:
    """Where the reference does not fit, prove who stands in for it on the first tokens."""
    first = [x[:, :512].detach() for x in inputs]
    right = _compute(truth, first, setting, "reference")
    if not torch.allclose(_compute(truth, first, setting, backend), right, rtol=0, atol=1e-10):
        raise RuntimeError(f"the {backend} backend in float64 does not agree with the reference")
