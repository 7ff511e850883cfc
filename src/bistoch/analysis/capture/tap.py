"""Functions whose calls are recorded: replaced while a listener is attached, then put back.

One replacement serves all listeners, so that captures may be nested, overlap, and end in any order.
"""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A recorded call: what was called, with what, and what it returned."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


Listener = Callable[[Call], None]

_lock = threading.Lock()
_taps: dict[tuple[int, str], "_Tap"] = {}


class _Tap:
    def __init__(self, owner: Any, name: str):
        self.owner, self.name, self.original = owner, name, vars(owner)[name]
        self.listeners: list[Listener] = []

        @functools.wraps(self.original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            result = self.original(*args, **kwargs)
            for listener in tuple(self.listeners):
                listener(Call(self.original, args, kwargs, result))
            return result

        self.recorded = recorded
        setattr(owner, name, recorded)

    def close(self) -> None:
        # if the function was replaced again after us, that stays; we only pass calls on
        if vars(self.owner).get(self.name) is self.recorded:
            setattr(self.owner, self.name, self.original)


def listen(owner: Any, name: str, listener: Listener) -> Callable[[], None]:
    """Record every call of `owner.name`, after it returned; call the result to stop.

    >>> import types
    >>> shop = types.SimpleNamespace(sell=lambda count: 2 * count)
    >>> sold = []
    >>> stop = listen(shop, "sell", lambda call: sold.append(call.result))
    >>> shop.sell(3), stop(), shop.sell(4), sold
    (6, None, 8, [6])
    """
    with _lock:
        tap = _taps.get((id(owner), name))
        if tap is None:
            tap = _taps[id(owner), name] = _Tap(owner, name)
        tap.listeners.append(listener)

    def stop() -> None:
        with _lock:
            # by identity, since the bound methods of one object are equal
            keep = [other for other in tap.listeners if other is not listener]
            tap.listeners[:] = keep
            if not keep and _taps.get((id(owner), name)) is tap:
                del _taps[id(owner), name]
                tap.close()

    return stop


def holders(name: str, function: Any) -> list[Any]:
    """The loaded modules that hold a function under its name, their own or imported.

    >>> import torch.nn.functional as F
    >>> attend = F.scaled_dot_product_attention
    >>> F in holders("scaled_dot_product_attention", attend)
    True
    """
    found = []
    for module in list(sys.modules.values()):
        # the dictionary is asked, not the module: some modules import more when asked for a name
        held = getattr(module, "__dict__", {}).get(name)
        tap = _taps.get((id(module), name))
        if held is function or (tap is not None and tap.original is function):
            found.append(module)
    return found
