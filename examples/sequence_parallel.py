"""Balanced attention of one sequence that is sharded over ranks.

    $ torchrun --nproc-per-node 2 examples/sequence_parallel.py
    $ torchrun --nproc-per-node 4 examples/sequence_parallel.py --length 4099 --keys ring

Every rank has a stretch of the sequence, and learns with the others how strongly each head should
be balanced. At the end rank 0 compares a result with that of one process. On GPUs it uses nccl.
"""

import argparse
import os

import torch
import torch.distributed as dist

import bistoch
import bistoch.distributed as bd


def main() -> None:
    """Join the other ranks, train with them, and leave them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=1021, help="tokens of the whole sequence")
    parser.add_argument("--keys", choices=["gather", "ring"], default="gather")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        train(options, device)
    finally:
        dist.destroy_process_group()


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train a `lam` per head for a few steps, and check the result."""
    rank, size = dist.get_rank(), dist.get_world_size()

    # shards need not be even
    bounds = [options.length * place // size for place in range(size + 1)]
    own = slice(bounds[rank], bounds[rank + 1])
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(4, 4, options.length, 32, generator=generator).to(device)
    whole[1, :, :5] += 1
    query, key, value, target = whole[..., own, :].unbind()

    # all ranks start with the same, get the same gradient, and so stay alike
    logit = torch.zeros(4, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([logit], lr=1.0)
    for step in range(options.steps):
        optimizer.zero_grad()
        rows = bd.elastic_attention(
            query, key, value, lam=logit.sigmoid(), iters=5, keys=options.keys
        )
        # each rank has the loss of its rows; gradients are those of the sum over ranks
        loss = (rows - target).square().sum() / options.length
        loss.backward()
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            found = [round(x, 4) for x in logit.sigmoid().tolist()]
            print(f"step {step}: loss {total:.5f}, lam = {found}")

    with torch.no_grad():
        rows = bd.elastic_attention(
            query, key, value, lam=logit.sigmoid(), iters=5, keys=options.keys
        )
        alone = bistoch.elastic_attention(
            *whole[:3], lam=logit.sigmoid(), iters=5, backend="streaming"
        )
        apart = (rows - alone[..., own, :]).abs().amax()
    dist.all_reduce(apart, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"{size} ranks, {options.keys}: at most {apart:.1e} from one process")


if __name__ == "__main__":
    main()
