"""What ranks send: counted while a call runs, and by formula."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor


class Message(NamedTuple):
    """One message of one rank, and the bytes of what it hands in.

    What then travels depends on the collective: of an `all_reduce` about twice as much, of an
    `all_gather` as much to every other rank.
    """

    kind: str
    bytes: int


class Call(NamedTuple):
    """The sizes of a call of `elastic_attention` over ranks, without masks and tolerance.

    The leading axes of query, key and value are the same, and every rank has as many keys.
    """

    ranks: int
    # heads times batch
    problems: int
    keys: int
    features: int
    value_features: int
    iters: int
    bytes_per_number: int = 4


@contextmanager
def count_messages() -> Iterator[Counter[Message]]:
    """Count all messages of this process that tensors are sent with, while the block runs.

    The functions of `torch.distributed` are wrapped, so whoever calls them is counted.

    >>> with count_messages() as sent:
    ...     pass
    >>> sent.total()
    0
    """
    found: Counter[Message] = Counter()
    names = ("all_reduce", "all_gather", "reduce_scatter", "send", "batch_isend_irecv")
    before: dict[str, Any] = {name: getattr(dist, name) for name in names}

    def counting(name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            for message in _messages(name, arguments):
                found[message] += 1
            return before[name](*arguments, **options)

        return call

    for name in names:
        setattr(dist, name, counting(name))
    try:
        yield found
    finally:
        for name in names:
            setattr(dist, name, before[name])


def _messages(name: str, arguments: Sequence[Any]) -> Iterator[Message]:
    if name == "batch_isend_irecv":
        for operation in arguments[0]:
            if operation.op is dist.isend:
                yield Message("send", _bytes(operation.tensor))
    elif name == "reduce_scatter":
        yield Message(name, sum(_bytes(x) for x in arguments[1]))
    elif name == "all_gather":
        yield Message(name, _bytes(arguments[1]))
    else:
        yield Message(name, _bytes(arguments[0]))


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def gathered_messages(call: Call, *, backward: bool = False) -> Counter[Message]:
    """What a rank sends with `keys="gather"`: one number per key and iteration.

    >>> call = Call(4, 8, 1024, 64, 64, iters=10)
    >>> gathered_messages(call)[Message("all_reduce", 8 * 1024 * 4)]
    12
    >>> more = gathered_messages(call, backward=True) - gathered_messages(call)
    >>> more[Message("all_reduce", 8 * 1024 * 4)]
    10
    """
    found: Counter[Message] = Counter()

    def add(kind: str, count: int, numbers: int, width: int = call.bytes_per_number) -> None:
        if count:
            found[Message(kind, numbers * width)] += count

    shard = call.problems * (call.keys // call.ranks)
    # are we alike? how many queries are there? is something not finite?
    add("all_gather", 1, 6, width=8)
    add("all_reduce", 2 if call.iters else 1, call.problems)
    add("all_gather", 1, shard * call.features)
    add("all_gather", 1, shard * call.value_features)
    # the first has to find the largest terms, and the last tells the error
    add("all_reduce", call.iters + 2, call.problems * call.keys)
    if backward:
        add("all_reduce", call.iters, call.problems * call.keys)
        for features in (call.features, call.value_features):
            add("reduce_scatter", 1, call.ranks * shard * features)
    return found


def ring_messages(call: Call, *, backward: bool = False) -> Counter[Message]:
    """What a rank sends with `keys="ring"`: two rounds of all keys in every iteration.

    >>> call = Call(4, 8, 1024, 64, 64, iters=10)
    >>> ring_messages(call)[Message("send", 8 * 256 * (64 + 1) * 4)] == 10 * 3
    True
    """
    found: Counter[Message] = Counter()
    shard = call.problems * (call.keys // call.ranks)
    hops, width, iters = call.ranks - 1, call.bytes_per_number, call.iters

    def send(count: int, numbers_per_key: int) -> None:
        if count:
            found[Message("send", shard * numbers_per_key * width)] += count

    def rounds(count: int, carried: int, home: int = 0) -> None:
        """Rounds of keys, each with what goes round with them and what comes home."""
        send(count * hops, call.features + 1 + carried)
        send(count * call.ranks if home else 0, home)

    found[Message("all_gather", 6 * 8)] += 1
    found[Message("all_reduce", call.problems * width)] += 2
    found[Message("all_reduce", 3 * call.problems * width)] += 1
    rounds(iters, 1)
    rounds(iters, 0, 2)
    rounds(1, 1 + call.value_features)
    if not iters:
        rounds(1, 0, 2)
        found[Message("all_reduce", 3 * call.problems * width)] += 1
    if backward:
        rounds(1 if iters else 0, 1 + call.value_features, 1)
        rounds(iters, 3)
        rounds(max(iters - 1, 0), 1, 1)
        rounds(1, 1 + 4 * iters + call.value_features, call.features + call.value_features)
    return found


def total_bytes(messages: Counter[Message]) -> int:
    """The bytes that are handed in altogether."""
    return sum(message.bytes * count for message, count in messages.items())


def wire_bytes(messages: Counter[Message], ranks: int) -> float:
    """The bytes that leave a rank, if reductions go round in a ring."""
    factors = {"all_reduce": 2 * (ranks - 1) / ranks, "all_gather": ranks - 1.0}
    factors |= {"reduce_scatter": (ranks - 1) / ranks, "send": 1.0}
    return sum(factors[kind] * size * count for (kind, size), count in messages.items())
