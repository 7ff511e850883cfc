"""Operators as modules: a row of the OPERATORS table together with its options and parameters."""

import inspect
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from bistoch.functional import OPERATORS, Operator, check_options, inputs
from bistoch.functional.inputs import Mask, Option
from bistoch.nn.heads import check_heads, one_per_head
from bistoch.nn.over_ranks import attend_over_ranks
from bistoch.nn.unit_interval import clamp_to_unit

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# why an operator does not take an argument of the call, and which one does
REASONS = {
    "column_mass": (
        "since this operator has no column sums to choose; use one that balances columns, for "
        "example 'elastic'"
    ),
    "row_mass": (
        "since rows of attention sum to one; weigh queries in bistoch.elastic_potentials, or "
        "rows of scores in bistoch.balance"
    ),
    "generator": "since this operator draws no random numbers; leave it out",
}


class OperatorModule(nn.Module):
    """Any operator of the table as a module: called it attends, and `plan` is its matrix.

    An option is an attribute under its own name and may be changed between calls, for example by a
    schedule. An option that is a tensor becomes a buffer, an `nn.Parameter` is learned. A module
    prints as the text that builds it. With a device mesh as its `mesh`, every rank has a shard of
    the tokens (docs/distributed_training.md).

    Args:
        row: a row of `bistoch.OPERATORS`, or one of your own.
        options: what to set the operator up with; all others keep their defaults.

    >>> import torch, bistoch
    >>> anneal = OperatorModule(bistoch.OPERATORS["anneal"], iters=20)
    >>> anneal
    anneal(iters=20)
    >>> q, k, v = torch.randn(3, 2, 8, 5, 4).unbind()
    >>> anneal(q, k, v).shape, anneal.plan(q, k).shape
    (torch.Size([2, 8, 5, 4]), torch.Size([2, 8, 5, 5]))
    """

    mesh: "DeviceMesh | None" = None

    def __init__(self, row: Operator, **options: Any) -> None:
        super().__init__()
        check_options(row.name, options, row.options())
        self.row = row
        self._option_names = tuple(options)
        for name, value in options.items():
            is_constant = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
            setattr(self, name, nn.Buffer(value) if is_constant else value)

    @property
    def causal(self) -> bool:
        """Whether a causal mask hides the future from every row."""
        return self.row.causal

    @property
    def rows_are_independent(self) -> bool:
        """Whether no row depends on another, so that a padded query changes no other row."""
        return self.row.rows_stand_alone

    def options(self) -> dict[str, Any]:
        """The options of the next call, by name."""
        return {name: getattr(self, name) for name in self._option_names}

    def forward(
        self,
        query: Float[Tensor, "*#b n d"],
        key: Float[Tensor, "*#b m d"],
        value: Float[Tensor, "*#b m e"],
        *,
        mask: Mask | None = None,
        query_mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "..."] | None = None,
        column_mass: Float[Tensor, "..."] | None = None,
        row_mass: Float[Tensor, "..."] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*b n e"]:
        """Attend; the arguments are those of `bistoch.elastic_attention`.

        Masses and a generator reach operators that take them; others refuse them.
        """
        extra = self._extra(column_mass, row_mass, generator)
        if self.mesh is not None:
            masks = {"mask": mask, "query_mask": query_mask, "key_mask": key_mask}
            return attend_over_ranks(
                self.row.name, self.mesh, query, key, value, self.options(), masks | extra
            )
        return self.row.attention(
            query, key, value, mask=mask, query_mask=query_mask, key_mask=key_mask,
            **self.options(), **extra,
        )  # fmt: skip

    def plan(
        self,
        query: Float[Tensor, "*#b n d"],
        key: Float[Tensor, "*#b m d"],
        *,
        mask: Mask | None = None,
        query_mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "..."] | None = None,
        column_mass: Float[Tensor, "..."] | None = None,
        row_mass: Float[Tensor, "..."] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*b n m"]:
        """The plan with which `forward` weighs the values."""
        if self.mesh is not None:
            raise NotImplementedError(
                f"{self.row.name}: the plan of tokens that are sharded over a mesh is never made; "
                "call plan on one rank with all tokens, and mesh set to None"
            )
        extra = self._extra(column_mass, row_mass, generator)
        return self.row.plan(
            query, key, mask=mask, query_mask=query_mask, key_mask=key_mask,
            **self.options(), **extra,
        )  # fmt: skip

    def _extra(
        self,
        column_mass: Tensor | None,
        row_mass: Tensor | None,
        generator: torch.Generator | None,
    ) -> dict[str, Any]:
        """The arguments of a call beside tokens and masks, if the operator takes it."""
        given = {"column_mass": column_mass, "row_mass": row_mass, "generator": generator}
        given = {name: value for name, value in given.items() if value is not None}
        if given:
            taken = inspect.signature(self.row.attention).parameters
            for name in given:
                if name not in taken:
                    raise TypeError(f"{self.row.name}: {name} must be None, {REASONS[name]}")
        return given

    def extra_repr(self) -> str:
        """The options as they are written in the text."""
        return ", ".join(f"{name}={_show(value)}" for name, value in self._written().items())

    def _written(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        defaults = self.row.options()
        options = {name: getattr(self, name) for name in self._option_names}
        return {
            name: value
            for name, value in options.items()
            if isinstance(value, Tensor) or value != defaults[name]
        }

    def _get_name(self) -> str:
        return self.row.name


class Softmax(OperatorModule):
    """The row softmax: columns are free. Arguments as for `bistoch.softmax_attention`.

    >>> import torch
    >>> q, k, v = torch.randn(3, 8, 5, 4).unbind()
    >>> Softmax(eps=0.5)(q, k, v).shape
    torch.Size([8, 5, 4])
    """

    def __init__(self, eps: Option = 1.0, scale: float | None = None) -> None:
        super().__init__(OPERATORS["softmax"], eps=eps, scale=scale)


class Sinkhorn(OperatorModule):
    """The doubly stochastic plan. Arguments as for `bistoch.sinkhorn_attention`.

    >>> import torch
    >>> q, k = torch.randn(2, 8, 5, 4).unbind()
    >>> plan = Sinkhorn(iters=200).plan(q, k)
    >>> bool(torch.allclose(plan.sum(-2), torch.ones(8, 5), atol=1e-4))
    True
    """

    def __init__(
        self,
        eps: Option = 1.0,
        omega: Option | None = None,
        iters: int = 10,
        tol: float | None = None,
        scale: float | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            OPERATORS["sinkhorn"],
            eps=eps, omega=omega, iters=iters, tol=tol, scale=scale, backend=backend,
        )  # fmt: skip


class LamModule(OperatorModule):
    """An operator with an elasticity that every head may learn for itself.

    Args:
        row: its row of `bistoch.OPERATORS`.
        lam: elasticity in [0, 1], by default 1. With `learn="head"` the value to start from, by
            default 0.
        learn: "none", or "head" for a parameter `lam` with one entry per head. It is used clamped
            to [0, 1]; at an end it receives the gradient only if that leads back inside.
        heads: how many heads there are, for `learn="head"`.
        options: what else to set the operator up with.

    >>> LamModule(OPERATORS["elastic"], lam=0.5, learn="head", heads=2).lam.tolist()
    [0.5, 0.5]
    """

    lam: float | Tensor

    def __init__(
        self, row: Operator, lam: Option | None, learn: str, heads: int | None, **options: Any
    ) -> None:
        owner = type(self).__name__
        inputs.check_choice(owner, "learn", learn, ("none", "head"))
        if learn == "head":
            heads = check_heads(owner, heads)
            start = 0.0 if lam is None else lam
            inputs.check_lam(owner, start, (heads,))
            lam = nn.Parameter(one_per_head(start, heads))
        elif lam is None:
            lam = 1.0
        super().__init__(row, lam=lam, **options)
        self.learn = learn
        self.heads = heads if learn == "head" else None

    def options(self) -> dict[str, Any]:
        """The options of the next call, by name; a learned lam as it is used, inside [0, 1]."""
        options = super().options()
        if self.learn == "head":
            options["lam"] = clamp_to_unit(options["lam"])
        return options

    def _written(self) -> dict[str, Any]:
        written = super()._written()
        if self.learn == "head":
            # a learned lam is shown by the words that make it
            del written["lam"]
            written |= {"learn": self.learn, "heads": self.heads}
        return written


class Elastic(LamModule):
    """The plan between softmax and doubly stochastic, whose elasticity may be learned per head.

    Args:
        lam: elasticity in [0, 1], by default 1. With `learn="head"` the value to start from, by
            default 0: a new layer is exact softmax, and balances its columns as far as that helps.
        eps, omega, iters, tol, coarse, scale, backend: as for `bistoch.elastic_attention`.
        learn: "none", or "head" for a parameter `lam` with one entry per head. It is used clamped
            to [0, 1]; at an end it receives the gradient only if that leads back inside.
        heads: how many heads there are, for `learn="head"`; tokens are then (..., heads, n, d).

    >>> import torch
    >>> operator = Elastic(learn="head", heads=8, iters=5)
    >>> operator
    elastic(iters=5, learn='head', heads=8)
    >>> q, k, v = torch.randn(3, 2, 8, 5, 4).unbind()
    >>> bool(torch.allclose(operator(q, k, v), Softmax()(q, k, v), atol=1e-5))
    True
    """

    def __init__(
        self,
        lam: Option | None = None,
        eps: Option = 1.0,
        omega: Option | None = None,
        iters: int = 10,
        tol: float | None = None,
        scale: float | None = None,
        backend: str = "auto",
        learn: Literal["none", "head"] = "none",
        heads: int | None = None,
        coarse: int | None = None,
    ) -> None:
        super().__init__(
            OPERATORS["elastic"], lam, learn, heads,
            eps=eps, omega=omega, iters=iters, tol=tol, coarse=coarse, scale=scale, backend=backend,
        )  # fmt: skip


class Hard(OperatorModule):
    """The best even assignment, a 0/1 plan. Arguments as for `bistoch.hard_attention`.

    >>> import torch
    >>> q, k = torch.randn(2, 8, 5, 4).unbind()
    >>> Hard().plan(q, k).sum(-2).eq(1).all().item()
    True
    """

    def __init__(
        self,
        scale: float | None = None,
        straight_through: bool = False,
        eps: float = 1.0,
        iters: int = 10,
    ) -> None:
        super().__init__(
            OPERATORS["hard"], scale=scale, straight_through=straight_through, eps=eps, iters=iters
        )


def _show(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"<{type(value).__name__} {tuple(value.shape)}>"
    return repr(value)
