"""Studies that test a published claim again: what is claimed, and what is measured here.

`STUDIES` lists them all; adding one is one file and one row.
"""

from types import MappingProxyType

from bistoch.lab.reproduce import (
    causal_lm,
    cooccurrence,
    delta_lm,
    hubs,
    jigsaw,
    monarch_conversion,
    olinear,
    prototypes,
    qdsformer,
    rank_decay,
    registration,
    retrieval,
    router,
    sinkformer,
    sinks,
    sorting,
    stochastic_vit,
    zero_training,
)
from bistoch.lab.study import Study

STUDIES = MappingProxyType({
    study.name: study
    for study in (
        rank_decay.STUDY,
        sinks.STUDY,
        zero_training.STUDY,
        monarch_conversion.STUDY,
        qdsformer.STUDY,
        qdsformer.FULL_STUDY,
        causal_lm.STUDY,
        retrieval.STUDY,
        hubs.STUDY,
        prototypes.STUDY,
        router.STUDY,
        registration.STUDY,
        sorting.STUDY,
        jigsaw.STUDY,
        cooccurrence.STUDY,
        delta_lm.STUDY,
        olinear.STUDY,
        olinear.FULL_STUDY,
        stochastic_vit.STUDY,
        stochastic_vit.FULL_STUDY,
        sinkformer.STUDY,
        sinkformer.FULL_STUDY,
    )
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
