"""A warning points at the line of the user's code that led to it, whatever lies between."""

import pytest
import torch

import bistoch
from bistoch.analysis.capture import IncompleteCaptureWarning, capture
from bistoch.flows import FrozenWarning, heat_flow, heat_step, schrodinger_bridge, self_transport

Q, K, V = torch.randn(3, 2, 7, 5, generator=torch.Generator().manual_seed(0)).mul(3).unbind()
FEW = {"iters": 1, "tol": 1e-9}


class Model(torch.nn.Module):
    """Somebody's own module: the call of the layer in it is the line to point at."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *tokens):
        return self.layer(*tokens)


def captured():
    layer = bistoch.nn.Attention(8, 2)
    with capture(layer, budget=0):
        layer(torch.randn(1, 7, 8))


ENCODER = bistoch.nn.Attention(10, 2, operator=bistoch.nn.Elastic(**FEW))
MULTIHEAD = bistoch.nn.MultiheadAttention(10, 2, operator="sinkhorn(iters=1, tol=1e-9)")
X = torch.cat([Q, K], -1)


@pytest.mark.parametrize(("call", "category"), [
    (lambda: bistoch.elastic_attention(Q, K, V, **FEW), bistoch.ConvergenceWarning),
    (lambda: bistoch.elastic_plan(Q, K, **FEW), bistoch.ConvergenceWarning),
    (lambda: bistoch.elastic_potentials(Q, K, **FEW), bistoch.ConvergenceWarning),
    (lambda: bistoch.sinkhorn_attention(Q, K, V, **FEW), bistoch.ConvergenceWarning),
    (lambda: bistoch.balance(Q, **FEW), bistoch.ConvergenceWarning),
    (lambda: bistoch.balance(Q, **FEW, backend="cpu"), bistoch.ConvergenceWarning),
    (lambda: bistoch.gumbel_balance(Q, **FEW), bistoch.ConvergenceWarning),
    (lambda: bistoch.mixing_attention(Q, K, V, lam=1.0, **FEW), bistoch.ConvergenceWarning),
    (lambda: bistoch.mixing_plan(Q, K, lam=1.0, **FEW), bistoch.ConvergenceWarning),
    (lambda: bistoch.wasserstein_attention(Q, K, V, **FEW), bistoch.ConvergenceWarning),
    (lambda: bistoch.wasserstein_moments(Q, K, V, V.square(), **FEW), bistoch.ConvergenceWarning),
    (lambda: bistoch.nn.Elastic(**FEW)(Q, K, V), bistoch.ConvergenceWarning),
    (lambda: bistoch.nn.Elastic(**FEW).plan(Q, K), bistoch.ConvergenceWarning),
    (lambda: ENCODER(X), bistoch.ConvergenceWarning),
    (lambda: MULTIHEAD(X, X, X), bistoch.ConvergenceWarning),
    (lambda: self_transport(Q, 0.1, **FEW), bistoch.ConvergenceWarning),
    (lambda: heat_step(Q, 0.1, **FEW), bistoch.ConvergenceWarning),
    (lambda: next(x for x in heat_flow(Q, 0.1, 0.1) if x.step), FrozenWarning),
    (lambda: schrodinger_bridge(Q, K, 0.1, **FEW), bistoch.ConvergenceWarning),
    (captured, IncompleteCaptureWarning),
])  # fmt: skip
def test_a_warning_points_at_the_users_line(call, category):
    with pytest.warns(category) as caught:
        call()
    assert {warning.filename for warning in caught} == {__file__}


def test_a_warning_inside_a_users_module_points_into_it():
    model = Model(bistoch.nn.Elastic(**FEW))
    with pytest.warns(bistoch.ConvergenceWarning) as caught:
        model(Q, K, V)
    (warning,) = caught
    assert warning.filename == __file__
    assert warning.lineno == Model.forward.__code__.co_firstlineno + 1
