"""Match keypoints of which some have no partner, and learn when to leave one single."""

import torch

import bistoch

torch.manual_seed(0)


def draw(batch: int, n: int = 20, shared: int = 14, noise: float = 0.6):
    """Descriptors of two pictures that share some points, in another order."""
    one = torch.randn(batch, n, 32)
    other = torch.randn(batch, n, 32)
    other[:, :shared] = one[:, :shared] + noise * torch.randn(batch, shared, 32)
    order = torch.rand(batch, n).argsort(-1)
    other = other.gather(1, order[..., None].expand_as(other))
    # for each row of the first picture its column in the second, or -1
    partner = order.argsort(-1)
    partner[:, shared:] = -1
    return one, other, partner


def loss_of(found: bistoch.Match, partner: torch.Tensor) -> torch.Tensor:
    """Minus the log of the mass of true pairs, and of staying single where there is none."""
    paired = partner >= 0
    at_pairs = found.log_plan.gather(-1, partner.clamp_min(0)[..., None]).squeeze(-1)
    return -(at_pairs[paired].mean() + found.log_rows[~paired].mean())


# a pair with less than half of its mass is no pair
matcher = bistoch.nn.Matcher(bin_score=1.0, eps=1.0, iters=30, threshold=0.5)
optimizer = torch.optim.Adam(matcher.parameters(), lr=0.1)
for step in range(41):
    one, other, partner = draw(batch=16)
    loss = loss_of(matcher(one, other), partner)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step:2}: loss {loss.item():.2f}, bin score {matcher.bin_score.item():.2f}")

one, other, partner = draw(batch=100)
pairs = matcher(one, other).pairs
right = (pairs == partner) & (partner >= 0)
print(f"precision {right.sum() / (pairs >= 0).sum():.1%}, recall {right.sum() / 1400:.1%}")
