"""One row of the OPERATORS table, and its textual form "name(option=value, ...)"."""

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

# the arguments of a call, as opposed to what an operator is set up with
CALL_ARGUMENTS = frozenset({
    "query", "key", "value", "query_variance", "key_variance", "mask", "query_mask", "key_mask",
    "column_mass", "generator",
})  # fmt: skip


@dataclass(frozen=True)
class Operator:
    """A way to turn queries and keys into a plan and apply it to values: two functions of one law.

    `attention(q, k, v) == plan(q, k) @ v`, and what both promise:

    * rows_exact: rows of real queries sum to one after any number of iterations;
    * nonnegative: no entry is below zero;
    * columns: "free", pulled ("elastic"), pulled to those of uniform causal attention by earlier
      rows only ("streamed"), equal in the limit of many iterations ("limit"), or equal always for
      as many queries as keys ("exact");
    * differentiable: query and key receive the exact gradient;
    * causal: a causal mask hides the future, because no row depends on a later one; an operator
      that takes no such mask hides it by itself;
    * order_free: permuting keys with values, or queries with results, changes nothing else;
    * square: there must be as many queries as keys;
    * masks: what may be hidden: "any" pair, a key from all queries ("keys"), only whole tokens
      ("padding"), or nothing ("none");
    * static: the plan depends on positions alone, not on what the tokens say;
    * matrix_free: attention makes nothing of size n x m, forward or backward, however it is called.

    Four more facts: `family` is the heading it stands under in tables, `longest` the number of
    tokens beyond which its cost grows too fast (exponentially, say), None if it never does, `small`
    the options with which seven tokens take every path through it, and
    `exceptions` the laws that it does not keep, each with the reason: "permutation" (the scores of
    a permutation give that permutation), "identical keys" (they share equally) and "overflow"
    (scores that are too large for the dtype give NaN).
    """

    name: str
    attention: Callable[..., Tensor]
    plan: Callable[..., Tensor]
    columns: Literal["free", "elastic", "streamed", "limit", "exact"]
    causal: bool
    order_free: bool
    source: str
    backends: tuple[str, ...] = ("torch",)
    rows_exact: bool = True
    differentiable: bool = True
    nonnegative: bool = True
    square: bool = False
    masks: Literal["any", "keys", "padding", "none"] = "any"
    static: bool = False
    matrix_free: bool = False
    family: Literal["balanced", "structured", "row-wise"] = "structured"
    longest: int | None = None
    small: Mapping[str, Any] = field(default_factory=dict)
    exceptions: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows_stand_alone(self) -> bool:
        """Whether a row can be computed without the others, each with a mask of its own.

        >>> import bistoch
        >>> [name for name, row in bistoch.OPERATORS.items() if row.rows_stand_alone][0]
        'softmax'
        """
        rows_are_free = self.causal and self.columns == "free"
        return rows_are_free and self.masks == "any" and not self.square

    @property
    def always_causal(self) -> bool:
        """Whether a row sees nothing behind itself, without a mask that says so.

        >>> import bistoch
        >>> [name for name, row in bistoch.OPERATORS.items() if row.always_causal]
        ['causal_elastic', 'delta']
        """
        # the others serve any number of keys, and leave it to a mask what a row may see
        return self.causal and self.square

    def options(self) -> dict[str, Any]:
        """The options of this operator with their defaults.

        >>> import bistoch
        >>> bistoch.OPERATORS["softmax"].options()
        {'eps': 1.0, 'scale': None}
        """
        parameters = inspect.signature(self.attention).parameters.values()
        return {p.name: p.default for p in parameters if p.name not in CALL_ARGUMENTS}


def parse_operator(text: str, operators: Mapping[str, Operator]) -> tuple[Operator, dict[str, Any]]:
    """Read "elastic" or "elastic(lam=0.5, iters=5)" as a row of the table and its options.

    Options are Python literals; nothing is evaluated.

    >>> import bistoch
    >>> row, options = parse_operator("elastic(lam=0.5)", bistoch.OPERATORS)
    >>> row.name, options
    ('elastic', {'lam': 0.5})
    """
    name, options = read_call(text)
    if name not in operators:
        known = ", ".join(operators)
        raise ValueError(f"operator: unknown name {name!r} in {text!r}; known are {known}")
    return operators[name], options


def check_options(name: str, options: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse an option that an operator does not have."""
    for option in options:
        if option not in known:
            raise TypeError(
                f"{name}: unknown option {option!r}; it takes {', '.join(known) or 'no options'}"
            )


def read_call(
    text: str, what: str = "operator", example: str = "elastic(lam=0.5, iters=5)"
) -> tuple[str, dict[str, Any]]:
    """Read "name" or "name(option=value, ...)"; the values are literals, nothing is evaluated.

    Args:
        text: what to read.
        what, example: what it names and how one is written, for the error sentence.

    >>> read_call("vit(depth=2, patch=(4, 28))", "model", "vit(depth=2)")
    ('vit', {'depth': 2, 'patch': (4, 28)})
    """
    if not isinstance(text, str):
        raise TypeError(f"{what}: must be text such as {example!r}, but it is {text!r}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, {}
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
            words = {word.arg: ast.literal_eval(word.value) for word in tree.keywords}
            options = {name: value for name, value in words.items() if name is not None}
            # **options have no name, and a repeated name would hide the first value
            if len(options) == len(tree.keywords):
                return tree.func.id, options
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        pass
    raise ValueError(
        f'{what}: cannot read {text!r}; write a name with literal options, for example "{example}"'
    )
