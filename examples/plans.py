"""Draw what four operators make of the same scores: `python examples/plans.py` writes plans.png."""

import torch

import bistoch
from bistoch.analysis import draw_plans

torch.manual_seed(0)
queries, keys = torch.randn(2, 12, 16).unbind()
# every query likes key 3
keys[3] += 4 * queries.mean(0)

plans = {
    "softmax": bistoch.softmax_plan(queries, keys),
    "elastic(lam=0.5)": bistoch.elastic_plan(queries, keys, lam=0.5),
    "sinkhorn": bistoch.sinkhorn_plan(queries, keys, iters=50),
    "hard": bistoch.hard_plan(queries, keys),
}
for name, plan in plans.items():
    print(f"{name:18} the fullest key receives {plan.sum(0).max():.2f} of 12")
draw_plans(plans).savefig("plans.png", dpi=130)
print("wrote plans.png")
