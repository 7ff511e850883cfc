"""Every argument of every flow, with every wrong kind of value, ends in a sentence."""

import inspect

import pytest
import torch

from bistoch import flows
from wrong_values import CHOICE, NOTHING, count, find_silent, floating, number, option

B, N, D = 3, 7, 2
CLOUD = torch.randn(B, N, D, generator=torch.Generator().manual_seed(0))
LINE = CLOUD[0, :, 0]

LEGAL = {
    flows.self_transport: {"particles": CLOUD, "eps": 1.0},
    flows.barycentric_projection: {"particles": CLOUD, "eps": 1.0},
    flows.score_estimate: {"particles": CLOUD, "eps": 1.0},
    flows.heat_step: {"particles": CLOUD, "eps": 1.0},
    flows.heat_flow: {"particles": CLOUD, "eps": 1.0, "time": 1.0},
    flows.schrodinger_bridge: {"source": CLOUD, "target": CLOUD, "eps": 1.0},
    flows.w2_line: {"first": LINE, "second": LINE},
    flows.w2_to_law: {"particles": LINE, "quantile": lambda share: share},
    flows.w2_exact: {"first": CLOUD[0], "second": CLOUD[0]},
    flows.w2_sliced: {"first": CLOUD[0], "second": CLOUD[0]},
    flows.self_transport_slope: {"variance": 1.0, "eps": 0.1},
    flows.step_variance: {"variance": 1.0, "eps": 0.1},
    flows.flow_variance: {"variance": 1.0, "time": 1.0, "eps": 0.1},
    flows.bridge_covariance: {"first": 1.0, "second": 2.0, "eps": 0.1},
    flows.bridge_variance: {"first": 1.0, "second": 2.0, "eps": 0.1, "t": 0.5},
    flows.gaussian_mixture: {"weights": [1.0], "means": [0.0], "covariances": [1.0]},
}
FUNCTIONS = {function.__name__: inspect.unwrap(function) for function in LEGAL}


def cloud(*shape):
    return floating(*shape) | NOTHING | {
        "no axes": torch.ones(()),
        "nan": torch.full(shape, torch.nan),
        "infinite": torch.full(shape, torch.inf),
    }  # fmt: skip


def masses(*shape):
    return floating(*shape) | {
        "other shape": torch.ones(13),
        "negative": -torch.ones(shape),
        "nan": torch.full(shape, torch.nan),
        "nothing at all": torch.zeros(shape),
    }


def one_number(*wrong):
    """A tensor without axes is a number too."""
    return {k: v for k, v in number(*wrong).items() if k != "tensor"}


VARIANCE = {
    "text": "1.0", "boolean": True, "complex": 1j, "nan": torch.nan, "infinite": torch.inf,
    "negative": -1.0, "nothing": None,
}  # fmt: skip
NUMBERS = {"text": "1.0", "nothing": None, "nan": [torch.nan], "infinite": [torch.inf],
           "texts": ["1.0"], "two": [1.0, 2.0, 3.0]}  # fmt: skip
ALONE = {"elsewhere"}

WRONG = {
    "particles": {k: v for k, v in cloud(B, N, D).items() if k not in ALONE},
    "source": cloud(B, N, D) | {"other dimensions": torch.ones(B, N, D + 1)},
    "target": cloud(B, N, D) | {"other dimensions": torch.ones(B, N, D + 1)},
    "at": {k: v for k, v in cloud(B, 3, D).items() if k != "nothing"}
    | {"other dimensions": torch.ones(B, 3, D + 1)},
    "weights": masses(B, N),
    "source_weights": masses(B, N),
    "target_weights": masses(B, N),
    "potential": floating(B, N)
    | {"other shape": torch.ones(13), "nan": torch.full((B, N), torch.nan)},
    "eps": option(0.0, -1.0) | NOTHING,
    "time": number(-1.0) | NOTHING,
    "t": number(-0.1, 1.1) | NOTHING,
    "lam": one_number(-0.1, 1.1) | NOTHING,
    "tol": number(0.0, -1.0) | NOTHING,
    "iters": count(0, -1) | NOTHING,
    "fine": count(0, -1) | NOTHING,
    "projections": count(0, -1) | NOTHING,
    "direction": CHOICE,
    "backend": CHOICE,
    "variance": VARIANCE,
    "quantile": {"nothing": None, "number": 3, "tensor": torch.ones(3)},
    "generator": {"number": 3, "text": "seed"},
    "means": NUMBERS,
    "covariances": NUMBERS | {"negative": [-1.0]},
}

# arguments that mean something else in some functions
POINTS = {k: v for k, v in cloud(N, D).items() if k not in ALONE}
ON_A_LINE = {k: v for k, v in cloud(N).items() if k not in ALONE} | {
    "in a plane": torch.ones(N, 2), "none": torch.ones(0),
}  # fmt: skip
CLOSED = {"eps": one_number(0.0, -1.0) | NOTHING, "first": VARIANCE, "second": VARIANCE}
OWN = {
    "heat_flow": {"eps": one_number(0.0, -1.0) | NOTHING},
    "w2_line": {
        "first": ON_A_LINE, "second": ON_A_LINE,
        "first_weights": masses(N), "second_weights": masses(N),
    },
    "w2_to_law": {"particles": ON_A_LINE},
    "w2_exact": {
        "first": POINTS | {"none": torch.ones(0, D)}, "second": POINTS | {"none": torch.ones(0, D)},
        "first_weights": masses(N), "second_weights": masses(N),
    },
    "w2_sliced": {
        "first": POINTS | {"none": torch.ones(0, D)}, "second": POINTS | {"none": torch.ones(0, D)},
    },
    "self_transport_slope": CLOSED,
    "step_variance": CLOSED,
    "flow_variance": CLOSED,
    "bridge_covariance": CLOSED,
    "bridge_variance": CLOSED,
    "gaussian_mixture": {"weights": NUMBERS | {"negative": [-1.0]}},
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_wrong_argument_ends_in_a_sentence(name):
    function = FUNCTIONS[name]
    arguments = next(legal for key, legal in LEGAL.items() if key.__name__ == name)
    function(**arguments)
    parameters = inspect.signature(function).parameters
    wrong = {argument: (WRONG | OWN.get(name, {}))[argument] for argument in parameters}
    silent = find_silent(function, name, arguments, wrong)
    assert not silent, "\n".join(["", *silent])


def test_the_methods_of_a_bridge():
    bridge = flows.schrodinger_bridge(CLOUD, CLOUD, 1.0)
    silent = find_silent(bridge.displacement, "Bridge.displacement", {"t": 0.5}, {"t": WRONG["t"]})
    wrong = {"t": WRONG["t"], "count": count(-1) | NOTHING, "generator": WRONG["generator"]}
    silent += find_silent(bridge.sample, "Bridge.sample", {"t": 0.5, "count": 3}, wrong)
    assert not silent, "\n".join(["", *silent])


POINTS_OF_LAW = {k: v for k, v in floating(N, 1).items() if k not in ALONE} | NOTHING
IN_SPACE = {"x": POINTS_OF_LAW | {"a plane": torch.ones(N, 2)}}
COUNT = {"count": count(-1, 0) | NOTHING}


@pytest.mark.parametrize(("method", "legal", "wrong"), [
    ("after", {"time": 1.0}, {"time": WRONG["time"]}),
    ("sample", {"count": 3}, COUNT | {"generator": WRONG["generator"]}),
    ("quantiles", {"count": 3}, COUNT),
    ("log_density", {"x": torch.ones(N, 1)}, IN_SPACE),
    ("density", {"x": torch.ones(N, 1)}, IN_SPACE),
    ("score", {"x": torch.ones(N, 1)}, IN_SPACE),
    ("cdf", {"x": torch.ones(N)}, {"x": POINTS_OF_LAW}),
    ("carry", {"x": torch.ones(N), "time": 1.0}, {"x": POINTS_OF_LAW, "time": WRONG["time"]}),
    ("quantile", {"share": torch.full((3,), 0.5)},
     {"share": POINTS_OF_LAW | {"zero": torch.zeros(3), "one": torch.ones(3)}}),
])  # fmt: skip
def test_the_methods_of_a_law(method, legal, wrong):
    call = getattr(flows.two_bumps(), method)
    call(**legal)
    silent = find_silent(call, f"GaussianMixture.{method}", legal, wrong)
    assert not silent, "\n".join(["", *silent])
