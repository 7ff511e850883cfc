"""Operators whose input is held by several ranks of `torch.distributed`, a shard on each."""

from bistoch.distributed.causal import causal_elastic_attention as causal_elastic_attention
from bistoch.distributed.collectives import RankError as RankError
from bistoch.distributed.collectives import RankGroup as RankGroup
from bistoch.distributed.collectives import rank_group as rank_group
from bistoch.distributed.elastic import elastic_attention as elastic_attention
from bistoch.distributed.elastic import elastic_potentials as elastic_potentials
from bistoch.distributed.elastic import sinkhorn_attention as sinkhorn_attention
from bistoch.distributed.prototypes import prototype_codes as prototype_codes
from bistoch.distributed.scores import balance as balance
from bistoch.distributed.scores import balance_potentials as balance_potentials
