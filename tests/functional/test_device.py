"""What an accelerator would be asked to do: few launches, no copies from and no waits for the host.

Tensors on the device "meta" have no numbers: whoever reads one raises an error there.
"""

import contextlib

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
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


class CopiedTensors(TorchDispatchMode):
    """Collects the operations that take a tensor from the host to the device."""

    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        result, name = operation(*arguments, **(options or {})), operation.overloadpacket.__name__
        source = arguments[1] if name == "copy_" else arguments[0] if name == "_to_copy" else result
        if isinstance(source, Tensor) and source.device.type != result.device.type:
            self.found.append(name)
        return result


class CopiedNumbers(TorchFunctionMode):
    """Collects the tensors that are made of numbers on the host, which is done below dispatch."""

    MAKERS = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)

    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_function__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if function in self.MAKERS and result.device.type != "cpu":
            data = arguments[1 if function is Tensor.new_tensor else 0]
            if not isinstance(data, Tensor):
                self.found.append(function.__name__)
        return result


@contextlib.contextmanager
def copies():
    """What is copied from the host meanwhile, for which an accelerator would have to wait."""
    found = []
    with CopiedTensors(found), CopiedNumbers(found):
        yield found


def on_meta(*shape):
    return torch.empty(*shape, device="meta", requires_grad=True)


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


def test_what_is_copied_from_the_host_is_found():
    with copies() as found:
        torch.arange(3).to("meta")
        torch.empty(3, device="meta").copy_(torch.arange(3))
        torch.tensor([1.0], device="meta")
        torch.as_tensor(1.0, device="meta")
        torch.empty(3, device="meta").new_tensor([1.0])
    assert found == ["_to_copy", "copy_", "tensor", "as_tensor", "new_tensor"]
    with copies() as found:
        torch.full((), 1.0, device="meta") * torch.arange(3, device="meta").double()
    assert not found


@pytest.mark.parametrize("part", ["attention", "plan"])
@pytest.mark.parametrize("name", bistoch.OPERATORS)
def test_no_operator_copies_from_the_host(name, part):
    operator = bistoch.OPERATORS[name]
    given = [on_meta(2, 3, 16, 8) for _ in range(3 if part == "attention" else 2)]
    real = torch.empty(16, dtype=torch.bool, device="meta")
    hidden = [{}] if operator.masks == "none" else [{}, {"query_mask": real, "key_mask": real}]
    for options in hidden:
        with copies() as found:
            result = getattr(operator, part)(*given, **options)
            if result.requires_grad:
                result.sum().backward()
        assert not found


@pytest.mark.parametrize("backend", ["reference", "streaming"])
def test_causal_balance_copies_nothing_in_any_block(backend):
    # of 200 rows and more, the last block is cut and fair shares have several parts
    for n, block in ((50, 8), (450, 200)):
        with copies() as found:
            output = bistoch.causal_elastic_attention(
                *(on_meta(2, 2, n, 4) for _ in range(3)), block=block, backend=backend
            )
            output.sum().backward()
        assert not found


@pytest.mark.parametrize("ansatz", ["simple", "parted", "centrosymmetric", "trotter"])
def test_circuits_copy_no_matrix_from_the_host(ansatz):
    with copies() as found:
        bistoch.quantum_plan(on_meta(2, 8, 4), on_meta(2, 8, 4), ansatz=ansatz).sum().backward()
    assert not found


@pytest.mark.parametrize(
    "options",
    [
        {"bin_score": 1.0},
        {"bin_score": 1.0, "end": "columns"},
        {"row_price": 1.0, "column_price": 2},
        {"row_price": 1.0, "eps": torch.empty(3, device="meta")},
    ],
    ids=lambda options: "-".join(options),
)
def test_slack_given_as_a_number_is_not_copied(options):
    with copies() as found:
        bistoch.match(on_meta(3, 5, 7), **options).plan.sum().backward()
    assert not found


def test_capacities_given_as_numbers_are_not_copied():
    with copies() as found:
        bistoch.hard_balance(on_meta(3, 5, 7), row_capacity=1, column_capacity=2)
    assert not found


def test_the_tiles_of_an_accelerator_copy_nothing():
    with copies() as found:
        launches(*layer((2,), 32))
    assert not found


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
