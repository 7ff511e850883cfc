"""Learned parts: projections, heads and a learnable elasticity around one functional call."""

from bistoch.nn.attention import Attention as Attention
from bistoch.nn.block import Block as Block
from bistoch.nn.build import build_operator as build_operator
from bistoch.nn.causal import CausalElastic as CausalElastic
from bistoch.nn.circuits import Quantum as Quantum
from bistoch.nn.delta import Delta as Delta
from bistoch.nn.gaussian import GaussianAttention as GaussianAttention
from bistoch.nn.learned import Mixing as Mixing
from bistoch.nn.learned import Sink as Sink
from bistoch.nn.matcher import Matcher as Matcher
from bistoch.nn.multihead import MultiheadAttention as MultiheadAttention
from bistoch.nn.operators import Elastic as Elastic
from bistoch.nn.operators import Hard as Hard
from bistoch.nn.operators import OperatorModule as OperatorModule
from bistoch.nn.operators import Sinkhorn as Sinkhorn
from bistoch.nn.operators import Softmax as Softmax
from bistoch.nn.orthotrans import OrthoTrans as OrthoTrans
from bistoch.nn.pivots import LowRank as LowRank
from bistoch.nn.router import Router as Router
from bistoch.nn.router import Routing as Routing
