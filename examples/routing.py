"""A mixture of experts with even loads: a bias per expert, from past batches, no extra loss."""

import torch

import bistoch

torch.manual_seed(0)


class Mixture(torch.nn.Module):
    """Each token goes to one of eight small networks."""

    def __init__(self, dim: int, experts: int, lam: float):
        super().__init__()
        self.router = bistoch.nn.Router(dim, experts=experts, lam=lam)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(dim, dim) for _ in range(experts))

    def forward(self, x):
        """The sum over experts of what they make of their tokens, by their gates."""
        routing, result = self.router(x), torch.zeros_like(x)
        self.load = routing.load
        for number, expert in enumerate(self.experts):
            *where, slot = (routing.experts == number).nonzero(as_tuple=True)
            gate = routing.gates[(*where, slot)]
            share = gate[:, None] * expert(x[tuple(where)])
            result = result.index_put(tuple(where), share, accumulate=True)
        return result


for lam in (0.0, 1.0):
    model = Mixture(32, experts=8, lam=lam)
    middle = torch.randn(32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(30):
        x = torch.randn(8, 128, 32) + middle
        loss = (model(x) - x.roll(1, -1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    load = (model.load.max() / model.load.float().mean()).item()
    words = "without balance" if lam == 0 else "with balance   "
    print(f"{words}: the busiest expert has {load:.2f} times the mean load")
