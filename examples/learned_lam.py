"""A layer of torch in which each head learns its own lam, saved and loaded with the model."""

import torch

import bistoch

torch.manual_seed(0)


def new_model() -> torch.nn.Module:
    """A Transformer layer whose attention starts as exact softmax."""
    layer = torch.nn.TransformerEncoderLayer(32, nhead=4, batch_first=True, dropout=0.0)
    ours = bistoch.nn.MultiheadAttention(
        32, num_heads=4, batch_first=True, operator="elastic(learn='head')"
    )
    ours.load_state_dict(layer.self_attn.state_dict(), strict=False)
    layer.self_attn = ours
    return layer


def pairs(batch: int = 32, count: int = 6):
    """Tokens in pairs that share a noisy name; each has to tell what its partner carries."""
    name = torch.randn(batch, count, 16).repeat_interleave(2, 1)
    load = torch.randn(batch, count, 2, 16)
    x = torch.cat([name + 0.1 * torch.randn_like(name), load.flatten(1, 2)], -1)
    return x, load.flip(2).flatten(1, 2)


model = new_model()
# decay would pull lam towards softmax: matrices decay, the rest does not
groups = [
    {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.01},
    {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=1e-2)
for step in range(101):
    x, goal = pairs()
    loss = (model(x)[..., 16:] - goal).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        lam = ", ".join(f"{one:.2f}" for one in model.self_attn.operator.lam.clamp(0, 1))
        print(f"step {step:3}: loss {loss.item():.2f}, lam of the heads {lam}")

torch.save(model.state_dict(), "learned_lam.pt")
again = new_model()
again.load_state_dict(torch.load("learned_lam.pt"))
x, _ = pairs()
print("the loaded model computes the same:", torch.equal(again(x), model(x)))
