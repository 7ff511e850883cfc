"""Programs that `torch.export` writes for any length.

A size that is left open must decide nothing while a program is written, or the program is for one
size only. Most operators need no help. Those that loop over the blocks of a sequence, or make other
sizes from its length, are one operator in the program, which computes what the function does.
"""

import ast
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional.precision import device_of, no_autocast, with_own_code

P = ParamSpec("P")


def is_open(*sizes: int) -> bool:
    """Whether a program is being exported for any value of one of these sizes.

    >>> is_open(5, 7)
    False
    """
    if not torch.compiler.is_exporting():
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not all(has_static_value(size) for size in sizes)


def export_whole(
    function: Callable[P, Tensor], *, kernels_too: bool = False
) -> Callable[P, Tensor]:
    """As `full_precision`; and one operator of a program that is exported for any length.

    Its kernels, if the backend has any, are such an operator already; unless they leave behind what
    has other sizes than the tokens.
    """

    @wraps(function)
    def either(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if kwargs.keys() & inputs.REMEDIES.keys():
            kwargs = inputs.without_torch_names(function.__name__, kwargs)  # type: ignore[assignment]
        if torch.compiler.is_exporting() and (kernels_too or kwargs.get("backend") != "cpu"):
            given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
            if is_open(*(x for t in given.values() if isinstance(t, Tensor) for x in t.shape[-2:])):
                return _write(function.__name__, given)
        with no_autocast(device_of(*args, **kwargs)):
            return function(*args, **kwargs)

    return with_own_code(either)


def _write(function: str, given: dict[str, Any]) -> Tensor:
    tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    options = {name: x for name, x in given.items() if not isinstance(x, Tensor)}
    inputs.check_literals(function, options)
    return run_whole(function, list(tensors.values()), ",".join(tensors), repr(options))


@torch.library.custom_op("bistoch::whole", mutates_args=())
def run_whole(function: str, tensors: list[Tensor], names: str, options: str) -> Tensor:
    """Call a function of this package by its name, with tensors and with options as a literal."""
    return _call(function, tensors, names, options).contiguous()


def _call(function: str, tensors: list[Tensor], names: str, options: str) -> Tensor:
    # the table of functions holds those that are in need of this file
    from bistoch import functional

    given = dict(zip(names.split(","), tensors, strict=True))
    return getattr(functional, function)(**given, **ast.literal_eval(options))


@run_whole.register_fake
def _(function, tensors, names, options):
    given = dict(zip(names.split(","), tensors, strict=True))
    query, key = given["query"], given["key"]
    value = [given["value"]] if "value" in given else []
    batch = inputs.check_tokens(function, query, key, *value)
    width = value[0].shape[-1] if value else key.shape[-2]
    return query.new_empty(*batch, query.shape[-2], width)


def _setup_context(ctx, inputs, output) -> None:
    function, tensors, names, options = inputs
    ctx.save_for_backward(*tensors)
    ctx.call = function, names, options


def _differentiate(ctx, output_grad):
    """Compute it once more, now with autograd, which does not see into an operator."""
    function, names, options = ctx.call
    tensors = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    with torch.enable_grad():
        output = _call(function, tensors, names, options)
    found = iter(torch.autograd.grad(output, wanted, output_grad, allow_unused=True))
    return None, [next(found) if tensor.requires_grad else None for tensor in tensors], None, None


run_whole.register_autograd(_differentiate, setup_context=_setup_context)
