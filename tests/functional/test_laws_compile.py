"""The law that every operator compiles as one graph: a file of its own, without shape checks."""

import torch

from functional.law_cases import every_operator, keys_for, masks, tokens


@every_operator
def test_full_graph_compile(operator):
    m = keys_for(operator)
    q, k, v = (t.requires_grad_() for t in tokens(m=m, dtype=torch.float32))
    options = masks(operator, m=m)
    options |= {"iters": 3} if "iters" in operator.options() else {}
    compiled = torch.compile(operator.attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, **options), operator.attention(q, k, v, **options))
