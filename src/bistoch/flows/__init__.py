"""Particles under an operator: the heat flow of balanced self-attention, bridges, and the truth."""

from bistoch.flows.bridge import Bridge as Bridge
from bistoch.flows.bridge import schrodinger_bridge as schrodinger_bridge
from bistoch.flows.distance import w2_exact as w2_exact
from bistoch.flows.distance import w2_line as w2_line
from bistoch.flows.distance import w2_sliced as w2_sliced
from bistoch.flows.distance import w2_to_law as w2_to_law
from bistoch.flows.gaussian import bridge_covariance as bridge_covariance
from bistoch.flows.gaussian import bridge_variance as bridge_variance
from bistoch.flows.gaussian import flow_variance as flow_variance
from bistoch.flows.gaussian import self_transport_slope as self_transport_slope
from bistoch.flows.gaussian import step_variance as step_variance
from bistoch.flows.heat import FlowState as FlowState
from bistoch.flows.heat import barycentric_projection as barycentric_projection
from bistoch.flows.heat import heat_flow as heat_flow
from bistoch.flows.heat import heat_step as heat_step
from bistoch.flows.heat import score_estimate as score_estimate
from bistoch.flows.transport import FrozenWarning as FrozenWarning
from bistoch.flows.transport import SelfTransport as SelfTransport
from bistoch.flows.transport import self_transport as self_transport
from bistoch.flows.truth import GaussianMixture as GaussianMixture
from bistoch.flows.truth import gaussian_mixture as gaussian_mixture
from bistoch.flows.truth import two_bumps as two_bumps
