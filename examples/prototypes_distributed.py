"""Self-labelling as in SwAV: every process encodes its pictures, codes are balanced over all.

    torchrun --nproc-per-node 2 examples/prototypes_distributed.py --steps 60

From each of two views of a picture the network predicts the code of the other. The codes of a step
are balanced over the pictures of all processes, as if one had them all: the last lines show how far
that is from codes of one process, and what the published steps make of large scores.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import log_softmax, normalize
from torch.nn.parallel import DistributedDataParallel

import bistoch
from bistoch.distributed import prototype_codes
from bistoch.lab.data import load

EPS, TEMPERATURE = 0.05, 0.1


class Network(nn.Module):
    """Cosine similarity of pictures to prototypes."""

    def __init__(self, prototypes: int):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(28 * 28, 256), nn.ReLU(), nn.Linear(256, 64))
        self.prototypes = nn.Parameter(torch.randn(prototypes, 64))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Scores of pictures."""
        states = normalize(self.encode(pictures.flatten(1)), dim=-1)
        return states @ normalize(self.prototypes, dim=-1).T


def view(pictures: torch.Tensor) -> torch.Tensor:
    """A shifted, darker or brighter copy with noise."""
    down, right = torch.randint(-3, 4, (2,)).tolist()
    light = 0.7 + 0.6 * torch.rand(len(pictures), 1, 1)
    return pictures.roll((down, right), (1, 2)) * light + 0.05 * torch.randn_like(pictures)


def published(scores: torch.Tensor) -> torch.Tensor:
    """The published steps over processes: exponentials, then sums in turn."""
    plan = torch.exp(scores / EPS)
    for _ in range(3):
        columns = plan.sum(0)
        dist.all_reduce(columns)
        plan = plan / columns
        plan = plan / plan.sum(1, keepdim=True)
    return plan


def main() -> None:
    """Join the other processes, train with them, and leave them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=256, help="of all processes together")
    parser.add_argument("--prototypes", type=int, default=30)
    options = parser.parse_args()
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    else:
        # without torchrun, one process alone
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        train(options)
    finally:
        # whatever holds the group is gone by now, so that its threads end here and not at exit
        dist.destroy_process_group()


def train(options: argparse.Namespace) -> None:
    """Train for some steps, and compare the codes with those of one process."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pictures = torch.from_numpy(load("fashion-mnist-small").x_train).float() / 255
    network = DistributedDataParallel(Network(options.prototypes))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for step in range(1, options.steps + 1):
        # the same draw in all processes, of which each takes its share
        draw = torch.Generator().manual_seed(step)
        rows = torch.randint(len(pictures), (options.batch_size,), generator=draw)[rank::size]
        first, second = network(torch.cat([view(pictures[rows]) for _ in range(2)])).chunk(2)
        with torch.no_grad():
            codes = [prototype_codes(scores, eps=EPS, iters=3) for scores in (first, second)]
        loss = -sum(
            (code * log_softmax(scores / TEMPERATURE, -1)).sum(-1).mean() / 2
            for code, scores in zip(codes, (second, first), strict=True)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == options.steps:
            shares = codes[0].sum(0) * options.prototypes / options.batch_size
            dist.all_reduce(shares)
            if rank == 0:
                print(
                    f"step {step}: loss {loss.item():.3f}, prototypes receive "
                    f"{shares.min():.2f} to {shares.max():.2f} of an even share"
                )

    scores = network(pictures[rank::size]).detach()
    everywhere = [torch.empty(len(pictures[r::size]), options.prototypes) for r in range(size)]
    dist.all_gather(everywhere, scores)
    whole = bistoch.prototype_codes(torch.cat(everywhere), eps=EPS)
    mine = whole.split([len(part) for part in everywhere])[rank]
    apart = (prototype_codes(scores, eps=EPS) - mine).abs().max()
    dist.all_reduce(apart, dist.ReduceOp.MAX)
    # logits of a network without the normalisation easily are as large as this
    large = 100 * scores
    ours, theirs = (bool(f(large).isfinite().all()) for f in (prototype_codes, published))
    if rank == 0:
        print(f"codes over {size} processes are within {apart:.0e} of those of one process")
        print(
            f"scores a hundred times as large: ours finite {ours}, published steps finite {theirs}"
        )


if __name__ == "__main__":
    main()
