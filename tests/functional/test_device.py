"""What an accelerator would be asked to do: few launches, and never to wait for the host.

Tensors on the device "meta" have no numbers: whoever reads one raises an error there.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bistoch
from bistoch.functional.elastic import gradient, streaming, tiles
from bistoch.functional.elastic.operator import Upstream, empty, empty_history, inputs_of, room
from bistoch.functional.pose import BalanceOptions, ScoreOptions, pose


class Launches(TorchDispatchMode):
    """Counts operations that compute; views and new memory launch nothing."""

    FREE = ("view", "empty", "slice", "select", "expand", "transpose", "detach", "unsqueeze")

    count = 0

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        name = operation.overloadpacket.__name__
        if not operation.is_view and not name.startswith(self.FREE):
            self.count += 1
        return operation(*arguments, **(options or {}))


def layer(heads, n, iters=10):
    batch = torch.Size(heads)
    query, key, value = (torch.empty(*batch, n, 64, device="meta") for _ in range(3))
    options = ScoreOptions(1.0, None, None, None, None), BalanceOptions(1.0, None, iters, None)
    problem = pose("elastic_attention", batch, query, key, *options)
    return problem, value.reshape(-1, n, 64)


def launches(problem, value):
    """Of the forward and of the backward of `streaming`."""
    solution, history = empty(problem, value), empty_history(problem)
    with Launches() as forward:
        streaming.forward(problem, value, solution, history)
    grads = room(inputs_of(problem, value), False)
    upstream = Upstream(torch.empty_like(solution.output), None, None)
    with Launches() as backward:
        gradient.backward(problem, value, solution, history, upstream, grads)
    return forward.count, backward.count


def test_a_layer_takes_few_launches_on_an_accelerator(monkeypatch):
    problem, value = layer((8, 8), 512)
    forward, backward = launches(problem, value)
    assert forward < 700
    assert backward < 700
    assert len(list(tiles.parts(problem.scores))) == 1
    # each of which would take as many launches
    monkeypatch.setattr(tiles, "GPU_TILE_ELEMENTS", tiles.TILE_ELEMENTS)
    assert len(list(tiles.parts(problem.scores))) == 32


def test_memory_of_a_tile_is_bounded_on_an_accelerator():
    problem, _ = layer((64,), 4096)
    for part in tiles.parts(problem.scores):
        sizes = [scores.numel() for _, scores in part.tiles()]
        assert max(sizes) <= tiles.GPU_TILE_ELEMENTS


@pytest.mark.parametrize("name", bistoch.OPERATORS)
def test_no_operator_waits_for_a_number(name):
    q, k, v = (torch.empty(2, 3, 16, 8, device="meta", requires_grad=True) for _ in range(3))
    bistoch.OPERATORS[name].attention(q, k, v).sum().backward()
    assert v.grad.shape == v.shape


@pytest.mark.parametrize("backend", ["reference", "streaming"])
def test_masks_and_options_wait_for_no_number(backend):
    tokens = [torch.empty(2, 3, 16, 8, device="meta", requires_grad=True) for _ in range(3)]
    options = {
        "lam": torch.empty(3, device="meta"),
        "omega": torch.empty(3, device="meta"),
        "mask": torch.empty(16, 16, device="meta", requires_grad=True),
        "query_mask": torch.empty(16, device="meta", dtype=torch.bool),
        "key_mask": torch.empty(16, device="meta", dtype=torch.bool),
        "column_mass": torch.empty(16, device="meta"),
    }
    bistoch.elastic_attention(*tokens, backend=backend, **options).sum().backward()
    bistoch.balance(torch.empty(5, 4, 4, device="meta", requires_grad=True), backend=backend)


def test_only_a_tolerance_reads_numbers():
    """With one, `streaming` asks after every iteration whether anybody goes on."""
    read = []

    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), options=None):
            if operation.overloadpacket.__name__ == "_local_scalar_dense":
                read.append(operation)
            return operation(*arguments, **(options or {}))

    problem, value = (torch.randn(1, 7, 4) for _ in range(2))
    for tol, expected in ((None, 0), (1e-9, 5)):
        options = ScoreOptions(1.0, None, None, None, None), BalanceOptions(1.0, 1.0, 5, tol)
        posed = pose("elastic_attention", torch.Size([1]), problem, problem, *options)
        solution = empty(posed, value)
        with Reads():
            streaming.forward(posed, value, solution, None)
        assert len(read) == expected
