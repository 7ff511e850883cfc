"""Studies that ask a published claim again: what is claimed where, and what is measured here.

`STUDIES` lists them all; adding one is one file and one row.
"""

from types import MappingProxyType

from bistoch.lab.reproduce.causal_lm import run_causal_lm
from bistoch.lab.reproduce.qdsformer import RECIPE as QDSFORMER
from bistoch.lab.reproduce.qdsformer import run_qdsformer
from bistoch.lab.reproduce.rank_decay import run_rank_decay
from bistoch.lab.reproduce.sinks import run_sinks
from bistoch.lab.reproduce.study import Settings as Settings
from bistoch.lab.reproduce.study import Study as Study
from bistoch.lab.reproduce.zero_training import run_zero_training

STUDIES = MappingProxyType({
    "rank-decay": Study(
        name="rank-decay",
        question="Does balanced attention keep more directions alive with depth than softmax?",
        source="Lapenna, Fioresi, Gharesifard, arXiv 2604.07925; Dong et al., ICML 2021",
        run=run_rank_decay,
    ),
    "sinks": Study(
        name="sinks",
        question="Does balance remove attention sinks, and do diagonal heads take their place?",
        source="Sukenik et al., arXiv 2605.08453; Gu et al., ICLR 2025",
        run=run_sinks,
    ),
    "zero-training": Study(
        name="zero-training",
        question="How much of a trained sentence encoder is left when balance is swapped in?",
        source="this library, on all-MiniLM-L6-v2 (Reimers, Gurevych, EMNLP 2019)",
        run=run_zero_training,
    ),
    "qdsformer-fashion": Study(
        name="qdsformer-fashion",
        question="Does balance help a small vision Transformer, and how much of it is enough?",
        source="Born et al., QDSFormer, NeurIPS 2025, arXiv 2504.16275",
        run=run_qdsformer,
        seeds=(0, 1, 2),
        epochs=QDSFORMER.epochs,
    ),
    "causal-lm": Study(
        name="causal-lm",
        question="Does causal balance help a language model, and is it the balance that helps?",
        source="this library, on the characters of tiny Shakespeare",
        run=run_causal_lm,
        seeds=(0, 1, 2),
    ),
})  # fmt: skip


def study_of(name: str) -> Study:
    """The study with this name.

    >>> study_of("rank-decay").source.split(";")[1]
    ' Dong et al., ICML 2021'
    """
    if name not in STUDIES:
        known = ", ".join(STUDIES)
        raise ValueError(f"reproduce: unknown study {name!r}; known are {known}")
    return STUDIES[name]
