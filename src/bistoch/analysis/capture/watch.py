"""Watching a model run: hooks that see its modules, taps on the functions that attend.

Hooks are global ones, filtered by module: hooks on a module would switch the fused kernels of
`nn.TransformerEncoderLayer` off, and with them the last bits of its results.
"""

import fnmatch
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from bistoch.analysis.capture.recompute import (
    Found,
    asked_plan,
    eager_plan,
    encoder_layer_call,
    multihead_plan,
    multihead_shape,
    named_arguments,
    operator_plan,
    sdpa_call,
    sdpa_plan,
)
from bistoch.analysis.capture.record import (
    Captured,
    CapturedPlan,
    CapturedState,
    IncompleteCaptureWarning,
    Missed,
    dense,
    first_tensor,
)
from bistoch.analysis.capture.tap import Call, holders, listen
from bistoch.functional import inputs
from bistoch.nn.attention import Attention
from bistoch.nn.multihead import MultiheadAttention
from bistoch.nn.operators import OperatorModule

SDPA = "scaled_dot_product_attention"
EAGER = "eager_attention_forward"
_attend = functional.scaled_dot_product_attention
# set while a plan is computed again, so that no capture records that
_busy = threading.local()


@contextmanager
def capture(
    model: nn.Module,
    *,
    budget: int = 256 << 20,
    problems: int | None = 4,
    states: str | None = "blocks",
) -> Iterator[Captured]:
    """Record the plans and hidden states of a model while it runs in the block.

    Seen are operators of bistoch, `nn.MultiheadAttention` (also inside the fused kernels of
    `nn.TransformerEncoderLayer`), every call of `scaled_dot_product_attention`, and the matrix code
    ("eager") of models of transformers. Results are the same, bit by bit; plans that were not
    written down are computed again from what the call was given, without dropout. Everything is
    put back at the end of the block, also after an error. Other threads are not recorded.

    Args:
        model: what to watch; only what happens inside its modules is recorded.
        budget: bytes to keep at most. What no longer fits is listed in `missed`, with one warning.
        problems: how many sequences of a batch to keep, evenly spread; None keeps all.
        states: "blocks" keeps what goes into the first block and comes out of every block (the
            members of the outermost lists of modules); any other text is a pattern of module names
            such as "*.mlp"; None keeps no states.

    >>> layer = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2).eval()
    >>> with torch.no_grad(), capture(model) as seen:
    ...     result = model(torch.randn(1, 5, 16))
    >>> [(plan.name, tuple(plan.plan.shape)) for plan in seen.plans]
    [('layers.0.self_attn', (1, 4, 5, 5)), ('layers.1.self_attn', (1, 4, 5, 5))]
    >>> [state.name for state in seen.states]
    ['layers.0.input', 'layers.0', 'layers.1']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"capture: model must be a torch.nn.Module, but it is a {type(model).__name__}; "
            "wrap a function in a module, or capture the module that calls it"
        )
    inputs.check_count("capture", "budget", budget)
    if problems is not None:
        inputs.check_count("capture", "problems", problems, least=1)
    captured = Captured(budget, problems)
    watch = _Watch(model, captured, states)
    with ExitStack() as installed:
        for undo in watch.install():
            installed.callback(undo)
        yield captured
    if captured.missed:
        inputs.warn_caller(captured.sentence(), IncompleteCaptureWarning)


class _Frame:
    """A module that is running; whether a layer inside it attended, and the plan it asked for."""

    def __init__(self, module: nn.Module, name: str | None):
        self.module, self.name = module, name
        self.attended, self.plan = False, None


class _Watch:
    def __init__(self, model: nn.Module, captured: Captured, states: str | None):
        self.captured, self.model, self.thread = captured, model, threading.get_ident()
        self.names = {id(module): name for name, module in model.named_modules()}
        layers = [m for m in model.modules() if isinstance(m, Attention | MultiheadAttention)]
        self.operators = {id(layer.operator) for layer in layers}
        self.first, self.wanted = _wanted_states(model, states)
        self.stack: list[_Frame] = []

    def install(self) -> Iterator[Callable[[], object]]:
        """Start to watch; yields what undoes each step."""
        yield register_module_forward_pre_hook(self.enter).remove
        hook = register_module_forward_hook(self.leave, with_kwargs=True, always_call=True)
        yield hook.remove
        # torch does not undo this, and would warn at the next compilation
        yield lambda: _global_forward_hooks_with_kwargs.pop(hook.id, None)
        for holder in {id(m): m for m in [functional, *holders(SDPA, _attend)]}.values():
            yield listen(holder, SDPA, self.record_sdpa)
        for kind in _kinds_with_a_plan(self.model):
            yield listen(kind, "plan", self.record_plan)
        files = {type(module).__module__ for module in self.model.modules()}
        for file in sorted(files & sys.modules.keys()):
            if EAGER in vars(sys.modules[file]):
                yield listen(sys.modules[file], EAGER, self.record_eager)

    # what is recorded

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module starts."""
        if self.is_paused():
            return
        name = self.names.get(id(module))
        # an operator may hang on a function instead of the model, as in the models of transformers
        if name is None and not (self.stack and self.is_operator(module)):
            return
        self.stack.append(_Frame(module, name))
        if name in self.first:
            self.keep_state(f"{name}.input", args)

    def leave(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """A module returned; or failed, and then there are no keywords in `rest`."""
        if self.is_paused() or all(frame.module is not module for frame in self.stack):
            return
        frame = self.stack.pop()
        while frame.module is not module:
            # left over from an error that the model caught
            frame = self.stack.pop()
        if len(rest) < 2:
            return
        kwargs, result = rest
        self.keep_attention(frame, args, kwargs)
        if frame.name in self.first and not args:
            self.keep_state(f"{frame.name}.input", kwargs)
        if frame.name in self.wanted:
            self.keep_state(str(frame.name), result)

    def keep_attention(self, frame: _Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the plan of a module that attends."""
        module, name = frame.module, frame.name
        if name is None or _attends_as_one(module):
            name = self.place()
        if self.inside_attention():
            return
        if self.is_operator(module):
            call = named_arguments(module.forward, args, kwargs)
            self.keep_plan(_layer(name), "operator", _shape(call), operator_plan, module, call)
        elif isinstance(module, MultiheadAttention) and frame.plan is not None:
            call = named_arguments(module.forward, args, kwargs)
            shape = tuple(frame.plan.shape)
            self.keep_plan(name, "operator", shape, asked_plan, module, call, frame.plan)
        elif isinstance(module, nn.MultiheadAttention) and not _is_converted(module):
            call = named_arguments(module.forward, args, kwargs)
            shape = multihead_shape(module, call)
            self.keep_plan(name, "multihead", shape, multihead_plan, module, call)
        elif isinstance(module, nn.TransformerEncoderLayer) and not frame.attended:
            # its fused kernel did all the work without calling the layers inside
            attention: nn.MultiheadAttention = module.self_attn
            name = self.names.get(id(attention), name)
            call = encoder_layer_call(module, named_arguments(module.forward, args, kwargs))
            shape = multihead_shape(attention, call)
            self.keep_plan(name, "multihead", shape, multihead_plan, attention, call)

    def record_sdpa(self, call: Call) -> None:
        """A call of torch's attention function."""
        if self.is_paused() or not self.stack or self.inside_attention():
            return
        # in a converted layer the operator computed the call, and was recorded
        if not any(_is_converted(frame.module) for frame in self.stack):
            attended = sdpa_call(*call.args, **call.kwargs)
            self.keep_plan(self.place(), "sdpa", _shape(attended), sdpa_plan, attended)

    def record_plan(self, call: Call) -> None:
        """A layer asked its operator for the plan, to use it."""
        if self.is_paused() or not self.stack or self.inside_attention():
            return
        if isinstance(self.stack[-1].module, MultiheadAttention):
            self.stack[-1].plan = call.result

    def record_eager(self, call: Call) -> None:
        """The matrix code of transformers ran, on (module, query, key, value, mask, options)."""
        if not self.is_paused() and self.stack:
            shape = tuple(call.result[1].shape)
            self.keep_plan(self.place(), "eager", shape, eager_plan, call)

    # where we are

    def is_paused(self) -> bool:
        """Whether this call belongs to another thread, to a compiler, or to our own computing."""
        elsewhere = threading.get_ident() != self.thread or torch.compiler.is_compiling()
        return elsewhere or getattr(_busy, "now", False)

    def is_operator(self, module: nn.Module) -> bool:
        """Whether a module turns queries, keys and values into a result, with a plan."""
        ours = isinstance(module, OperatorModule) or _attends_as_one(module)
        return ours or id(module) in self.operators

    def inside_attention(self) -> bool:
        """Whether a module is running whose plan is kept as a whole."""
        return any(
            (isinstance(frame.module, nn.MultiheadAttention) and not _is_converted(frame.module))
            or self.is_operator(frame.module)
            for frame in self.stack
        )

    def place(self) -> str:
        """The name of the innermost running module that has one."""
        return next((str(f.name) for f in reversed(self.stack) if f.name is not None), "")

    # what is kept

    def keep_plan(
        self, name: str, source: str, shape: tuple[int, ...], find: Callable[..., Found], *call: Any
    ) -> None:
        """Find a plan and keep it, if it fits."""
        for frame in self.stack:
            frame.attended = True
        number = self.captured.count_call("plan", name)
        # with three axes the first may be the heads, which are all kept
        keep = self.captured.sample(shape[0]) if len(shape) >= 4 else None
        kept = shape if keep is None else (len(keep), *shape[1:])
        if not self.captured.has_room(name, number, math.prod(kept)):
            return
        try:
            with _silence():
                plan, value = find(*call, keep)
        except Exception as mistake:
            # a plan that cannot be found must not stop the model that made it
            self.captured.missed.append(
                Missed(name, number, f"{type(mistake).__name__}: {mistake}")
            )
            return
        value = None if value is None else self.captured.keep(value)
        record = CapturedPlan(name, number, source, self.captured.keep(plan), value)
        self.captured.plans.append(record)

    def keep_state(self, name: str, holder: Any) -> None:
        """Keep the hidden states in what a module got or returned, if they fit."""
        states = first_tensor(holder)
        if states is None:
            return
        number = self.captured.count_call("state", name)
        with torch.no_grad():
            states = dense(states.detach())
            if states.ndim >= 3:
                keep = self.captured.sample(states.shape[0])
                states = states if keep is None else states[keep]
            if self.captured.has_room(name, number, states.numel()):
                self.captured.states.append(CapturedState(name, number, self.captured.keep(states)))


@contextmanager
def _silence() -> Iterator[None]:
    """Compute without being recorded, without gradients, and without a trace in random numbers."""
    _busy.now = True
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.no_grad(), torch.random.fork_rng(gpus):
            yield
    finally:
        _busy.now = False


def _shape(call: dict[str, Any]) -> tuple[int, ...]:
    return (*call["query"].shape[:-1], call["key"].shape[-2])


def _attends_as_one(module: nn.Module | None) -> bool:
    """Whether a module gives its heads to several operators, and knows the plans of all."""
    return getattr(module, "attends_as_one", False)


def _is_converted(module: nn.Module) -> bool:
    """Whether `bistoch.convert` put an operator into a layer."""
    return _attends_as_one(getattr(module, "bistoch", None))


def _layer(name: str) -> str:
    """The name of the layer that an operator belongs to."""
    return name.removesuffix("operator").removesuffix(".")


def _kinds_with_a_plan(model: nn.Module) -> list[type]:
    """The classes that define the plan of the operators in a model."""
    layers = [m for m in model.modules() if isinstance(m, MultiheadAttention)]
    kinds = {
        next(kind for kind in type(layer.operator).__mro__ if "plan" in vars(kind)): None
        for layer in layers
        if hasattr(type(layer.operator), "plan")
    }
    return list(kinds)


def _wanted_states(model: nn.Module, states: str | None) -> tuple[set[str], set[str]]:
    """The names of the modules whose input, and of those whose result is wanted."""
    if states is None:
        return set(), set()
    named = dict(model.named_modules())
    if not isinstance(states, str):
        raise TypeError(
            "capture: states must be 'blocks', a pattern of module names or None, but it is a "
            f"{type(states).__name__}"
        )
    if states != "blocks":
        found = set(fnmatch.filter(named, states))
        if not found:
            raise ValueError(
                f"capture: states={states!r} matches no module of {type(model).__name__}; names "
                "are those of model.named_modules(), for example "
                f"{max(named, key=len)!r}"
            )
        return set(), found
    first: set[str] = set()
    blocks: set[str] = set()
    for name, module in named.items():
        inside = any(name == block or name.startswith(f"{block}.") for block in blocks)
        if inside or not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        members = [f"{name}.{number}".removeprefix(".") for number in range(len(module))]
        # members without parts, such as the layers of a small network, are no blocks
        alike = len({type(member) for member in module}) == 1
        if alike and any(True for _ in module[0].children()):
            first.add(members[0])
            blocks.update(members)
    return first, blocks
