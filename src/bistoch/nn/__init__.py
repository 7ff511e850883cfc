"""Learned parts: projections, heads and a learnable elasticity around one functional call."""

from bistoch.nn.attention import Attention as Attention
from bistoch.nn.multihead import MultiheadAttention as MultiheadAttention
from bistoch.nn.operators import NAMED as NAMED
from bistoch.nn.operators import Elastic as Elastic
from bistoch.nn.operators import Hard as Hard
from bistoch.nn.operators import OperatorModule as OperatorModule
from bistoch.nn.operators import Sinkhorn as Sinkhorn
from bistoch.nn.operators import Softmax as Softmax
from bistoch.nn.operators import build_operator as build_operator
from bistoch.nn.pivots import LowRank as LowRank

# classes that live in files of their own, so that their text builds them too
NAMED["lowrank"] = LowRank
