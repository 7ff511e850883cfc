"""Causal balance while a sequence grows: token by token, chunk by chunk, or all at once."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._nonfinite import show
from bistoch.functional.backends import BackendUnavailableError, choose_backend, choose_name
from bistoch.functional.causal import reference, streaming
from bistoch.functional.causal.api import _MODULES, BACKENDS, PLAIN
from bistoch.functional.causal.pose import Rule, clean_stream, pose_stream
from bistoch.functional.causal.problem import Account, Piece, Stream, cut, open_account
from bistoch.functional.causal.triton import as_they_came, takes
from bistoch.functional.causal.triton import operator as kernels
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.kernels.gpu import HAS_TRITON, check_new_enough, is_new_enough
from bistoch.functional.precision import full_precision

# backends that can go on from a state
RUN = {"reference": reference.run, "streaming": streaming.run, "triton": kernels.run}


class CausalState(NamedTuple):
    """What decoding remembers beside the cache of keys and values: three numbers per key and one.

    Attributes:
        bias: what is added to the scores of each key in the current block, (*b, m).
        received: the log of what rows gave to the key, the bias taken out again, (*b, m).
        wanted: what uniform causal attention would have given, (*b, m).
        level: the log of wanted over received with which a new key begins, (*b).
        position: how many real tokens there were, (*b).

    After a row that is NaN, because of a NaN or an infinity in the input, bias, received and level
    are NaN, and so are all rows to come.
    """

    bias: Float[Tensor, "*b m"]
    received: Float[Tensor, "*b m"]
    wanted: Float[Tensor, "*b m"]
    level: Float[Tensor, "*b"]
    position: Int[Tensor, "*b"]

    @property
    def length(self) -> int:
        """How many tokens there were, padding included."""
        return self.bias.shape[-1]

    def index_select(self, axis: int, index: Int[Tensor, "k"]) -> "CausalState":
        """The states of chosen sequences, for beam search: `axis` is a leading one.

        >>> import torch, bistoch
        >>> q, k, v = torch.randn(3, 2, 8, 5, 4).unbind()
        >>> _, state = bistoch.causal_elastic_step(q, k, v)
        >>> state.index_select(0, torch.tensor([1, 1, 0])).bias.shape
        torch.Size([3, 8, 5])
        """
        inputs.check_leading_axis("CausalState.index_select", axis, self.position.ndim)
        return CausalState(*(tensor.index_select(axis, index) for tensor in self))


@full_precision
def causal_elastic_step(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
    state: CausalState | None = None,
    *,
    lam: Option = 1.0,
    eps: Option = 1.0,
    block: int = 64,
    prior: float = 0.01,
    mask: Mask | None = None,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> tuple[Float[Tensor, "*b n e"], CausalState]:
    """The next n rows of `causal_elastic_attention`, and the state after them.

    However a sequence is cut into steps, the results are those of one call for all of it. Padding
    may be left, right or in between; it is told with `key_mask`, as for all tokens at once.

    Args:
        query: the n new tokens.
        key, value: the cache: all tokens up to the last new one. What lies behind these in a cache
            of fixed size is not looked at.
        state: of the step before; None at the beginning.
        mask: as for `causal_elastic_attention`, for the new rows only, (*b, n, m).
        query_mask: True where a new token is real, (*b, n).
        key_mask: True where a token of the cache is real, (*b, m).
        lam, eps, block, prior, scale: as for `causal_elastic_attention`, the same in every step.
        backend: "auto", "reference", "streaming" or "triton", which has no gradient and then is not
            what "auto" takes on a GPU; "cpu" has kernels for whole sequences only.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 8, 10, 4).unbind()
    >>> state, rows = None, []
    >>> for t in range(10):
    ...     cache = k[..., : t + 1, :], v[..., : t + 1, :]
    ...     row, state = bistoch.causal_elastic_step(q[..., t : t + 1, :], *cache, state, block=4)
    ...     rows.append(row)
    >>> once = bistoch.causal_elastic_attention(q, k, v, block=4)
    >>> bool(torch.allclose(torch.cat(rows, -2), once, atol=1e-5))
    True
    """
    operator = "causal_elastic_step"
    batch = inputs.check_tokens(operator, query, key, value)
    if state is not None:
        inputs.check_state(operator, state, batch)
    length = 0 if state is None else state.length
    stop = length + query.shape[-2]
    inputs.check_cache(operator, key.shape[-2], length, query.shape[-2])
    inputs.check_choice(operator, "backend", backend, ("auto", *BACKENDS))
    chosen = _choose(operator, backend, query, key, value, state, lam, eps, mask)
    if chosen not in RUN:
        # a few rows at a time leave nothing to gain for kernels
        raise BackendUnavailableError(
            f'{operator}: the backend "{chosen}" computes whole sequences, not steps; choose '
            'backend="auto" for steps, whose rows are the same'
        )
    mask, key_mask = (_up_to(hidden, stop, key.shape[-2]) for hidden in (mask, key_mask))
    key, value = key[..., :stop, :], value[..., :stop, :]
    rule = Rule(lam, eps, block, prior, scale)
    stream = pose_stream(operator, batch, query, key, value, rule, mask, query_mask, key_mask)
    account, position = _resume(operator, state, stream, batch)
    stream, broken = clean_stream(stream, None if state is None else account.level)
    before = account.level
    if broken is not None:
        account = Account(*(column.nan_to_num(0.0) for column in account))
    if chosen == "triton":
        stream = as_they_came(stream, query.dtype)
    pieces, position = _cut_between(stream, position, block, is_first=state is None)
    result, account = RUN[chosen](stream, account, pieces)
    if broken is not None:
        result = show(result, broken)
        account = _break(account, broken.any(-1) | ~before.isfinite())
    bias, received, wanted = (column.reshape(*batch, stop) for column in account[:3])
    level, position = account.level.reshape(batch), position.reshape(batch)
    after = CausalState(bias, received, wanted, level, position)
    return result.reshape(*batch, *result.shape[1:]).to(query.dtype), after


def _choose(
    operator: str,
    backend: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: CausalState | None,
    *options: Option | Mask | None,
) -> str:
    """The name of the backend that a user asked for; kernels for a step have no gradient."""
    given = (query, key, value, *(state or ()), *options)
    slopes = torch.is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad for x in given
    )
    known = takes(query, value)
    here = query.device.type == "cuda" and HAS_TRITON and is_new_enough(query.device)
    quick = here and known and not slopes
    name = choose_name(operator, backend, "triton" if quick else "streaming", PLAIN)
    if name == "triton":
        choose_backend(operator, name, _MODULES, query.device, name, plain=PLAIN)
        check_new_enough(operator, query.device)
        if not known:
            inputs.refuse_triton(operator, query.dtype, query.shape[-1], value.shape[-1])
        if slopes:
            inputs.refuse_step_gradient(operator)
    return name


def _resume(
    operator: str, state: CausalState | None, stream: Stream, batch: torch.Size
) -> tuple[Account, Int[Tensor, "B"]]:
    """The account of a state, with room for the new keys."""
    size, stop = stream.key.shape[:2]
    if state is None:
        start = torch.zeros(size, dtype=torch.int64, device=stream.key.device)
        return open_account(stream), start
    columns = [x.to(stream.key).expand(*batch, state.length) for x in state[:3]]
    bias, received, wanted = (column.reshape(size, state.length) for column in columns)
    level = state.level.to(stream.key).expand(batch).reshape(-1)
    new = level[:, None].expand(size, stop - state.length)
    account = Account(
        torch.cat([bias, stream.lam[:, None] * new], 1),
        torch.cat([received, math.log(stream.prior) - new], 1),
        torch.cat([wanted, torch.full_like(new, stream.prior)], 1),
        level,
    )
    return account, state.position.expand(batch).reshape(-1)


def _break(account: Account, lost: Bool[Tensor, "B"]) -> Account:
    """An account by which the rows to come know that one before them was NaN."""
    factor = torch.where(lost, torch.nan, 1.0).to(account.level)
    return account._replace(
        bias=account.bias * factor[:, None],
        received=account.received * factor[:, None],
        level=account.level * factor,
    )


def _cut_between(
    stream: Stream, position: Int[Tensor, "B"], block: int, *, is_first: bool
) -> tuple[list[Piece], Int[Tensor, "B"]]:
    """Pieces in which no sequence ends a block but at the end, and the positions after them.

    A single token, and a beginning without padding, need no number from the device for that.
    """
    n = stream.query.shape[1]
    if stream.real is None:
        new = torch.ones(len(position), n, dtype=torch.bool, device=position.device)
    else:
        new = stream.real[:, stream.real.shape[1] - n :]
    after = position[:, None] + new.cumsum(-1)
    ends = new & (after % block == 0)
    if n == 1:
        return [Piece(0, 1, ends[:, 0])], after[:, -1]
    if is_first and stream.real is None:
        whole = [piece._replace(ends=piece.last % block == 0) for piece in cut(n, block)]
        return whole, after[:, -1] if n else position
    cuts = (ends.any(0).nonzero().squeeze(-1) + 1).tolist()
    pieces = [
        Piece(first, last, ends[:, last - 1]) for first, last in zip([0, *cuts], cuts, strict=False)
    ]
    rest = cuts[-1] if cuts else 0
    if rest < n:
        pieces.append(Piece(rest, n, False))
    return pieces, after[:, -1] if n else position


def _up_to(mask: Tensor | None, stop: int, keys: int) -> Tensor | None:
    """A mask without the part of a cache that is not filled; one for other keys stays as it is."""
    if not isinstance(mask, Tensor) or mask.is_nested or mask.layout != torch.strided:
        # it is refused later, with all others
        return mask
    if mask.ndim == 0 or mask.shape[-1] != keys:
        return mask
    return mask[..., :stop]
