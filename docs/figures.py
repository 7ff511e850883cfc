"""Every picture and every table of measured numbers in the docs: `make figures` runs this file.

Pictures are written to docs/figures, tables into the pages, between the lines
`<!-- measured: name -->` and `<!-- end -->`. Seeds are fixed; nothing here is timed.
"""

import torch
from making.assignments import jigsaw, registration, sorting
from making.balance import (
    annealing,
    iterations,
    plans,
    rates,
    rowwise,
    soft_sort,
    speed_not_softness,
)
from making.causal import causal_blocks, causal_heads, causal_local, causal_updates
from making.choosing import choosing
from making.converted import converted
from making.explorer import explorer_page
from making.flows import flow_clusters, flow_limits, flow_mixture, flow_orders
from making.gallery import trained_head
from making.gpu import gpu_causal_expected, gpu_compiled, gpu_expected
from making.lab import lab_fashion, lab_fashion_long, lab_points, lab_scores, lab_text
from making.layouts import layouts
from making.pace import pace, pace_gradient
from making.pace_rivals import pace_rivals
from making.qdsformer import qdsformer
from making.search import search_gain
from making.studies import (
    causal_lm,
    cooccurrence,
    delta_lm,
    delta_time,
    delta_variants,
    encoder_sinks,
    hubs,
    lookup_sinks,
    monarch_conversion,
    olinear,
    prototypes,
    rank_decay,
    retrieval,
    router,
    sinkformer,
    stochastic_vit,
    zero_training,
)


def main() -> None:
    """Measure everything, draw it, and put the numbers into the pages."""
    # small matrices: more threads would only wait for each other
    torch.set_num_threads(1)
    for measure in (
        plans, speed_not_softness, rates, iterations, annealing, soft_sort, rowwise, zero_training,
        rank_decay, encoder_sinks, lookup_sinks, flow_mixture, flow_orders, flow_limits,
        flow_clusters, causal_updates, causal_local, causal_heads, causal_blocks, causal_lm,
        delta_lm, delta_time, delta_variants, pace, pace_gradient, pace_rivals, lab_fashion,
        lab_fashion_long, lab_points, lab_text, lab_scores,
        search_gain, retrieval, hubs, prototypes, router, registration, sorting, jigsaw,
        cooccurrence, olinear, qdsformer, explorer_page, converted, choosing, trained_head, layouts,
        monarch_conversion, sinkformer, stochastic_vit, gpu_compiled, gpu_expected,
        gpu_causal_expected,
    ):  # fmt: skip
        measure()
        print(f"done: {measure.__name__}")


if __name__ == "__main__":
    main()
