"""Causal elastic attention: balanced by what earlier rows did, independent of later ones."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.functional import inputs
from bistoch.functional._export import export_whole, is_open
from bistoch.functional._nonfinite import show
from bistoch.functional.backends import HAS_NUMBA, assume_constant_result, choose_backend
from bistoch.functional.causal.pose import Rule, clean_stream, pose_stream, sort_real, unsort
from bistoch.functional.causal.problem import Stream
from bistoch.functional.causal.triton import as_they_came, takes
from bistoch.functional.inputs import Mask, Option
from bistoch.functional.kernels.gpu import HAS_TRITON, check_new_enough, is_new_enough

_MODULES = {
    "reference": "bistoch.functional.causal.reference",
    "streaming": "bistoch.functional.causal.streaming",
    "cpu": "bistoch.functional.causal.operator",
    "triton": "bistoch.functional.causal.triton.backend",
}
BACKENDS = tuple(_MODULES)
# those made of torch's own operations
PLAIN = ("reference", "streaming")

# pairs of tokens, over the whole batch, below which compiling kernels takes longer than it saves
SMALL = 1 << 16


@export_whole
def causal_elastic_attention(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
    value: Float[Tensor, "*#b m e"],
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
) -> Float[Tensor, "*b n e"]:
    """Attend causally, with keys balanced by what the rows of earlier blocks gave them.

        P_i = softmax over j <= i of (S_ij + g_j)
        g_j = lam * log(H_j / k_j),  from the rows of earlier blocks only

    k_j is what these rows gave to key j, the bias they had seen taken out again; H_j is what
    uniform causal attention would have given. Keys of the block of row i have no past: they share
    the ratio that the keys of the block before had in theirs, or 1 if it was larger. Causal by
    itself, without a mask; `lam = 0` is causal softmax exactly. Nothing of size n x n exists,
    forward or backward, but in the reference.

    Args:
        query, key, value: tokens, as many queries as keys; the leading axes broadcast.
        lam: elasticity in [0, 1]: 0 is causal softmax, 1 balances as far as the past can tell. A
            number, or a tensor that broadcasts to the leading axes.
        eps: temperature, above zero: scores are divided by it. As lam, it may be a tensor.
        block: a bias is set anew after so many rows. Small blocks balance better and take longer.
        prior: mass that every key is thought to have been owed and given before the first row,
            above zero: how much a key must have received before it gets a bias.
        mask: boolean (True = may attend) or a float bias, broadcastable to (*b, n, n); what a row
            shares fairly is then among the keys it sees. Later keys are hidden in any case.
        query_mask, key_mask: True where the token is real. Query t and key t are one token here: a
            mask on either hides both, and blocks count real tokens only.
        scale: factor of the dot products, by default 1/sqrt(d).
        backend: "auto", "reference" (dense, readable), "streaming" (any device, linear memory),
            "cpu" (Numba kernels, linear memory, the price of causal softmax) or "triton" (the same
            on GPUs).

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 8, 100, 4).unbind()
    >>> bistoch.causal_elastic_attention(q, k, v, lam=0.5, block=16).shape
    torch.Size([2, 8, 100, 4])
    """
    rule = Rule(lam, eps, block, prior, scale)
    return _attend(
        "causal_elastic_attention", query, key, value, rule, mask, query_mask, key_mask, backend
    )


@export_whole
def causal_elastic_plan(
    query: Float[Tensor, "*#b n d"],
    key: Float[Tensor, "*#b m d"],
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
) -> Float[Tensor, "*b n m"]:
    """The plan of `causal_elastic_attention` as a dense matrix, for study.

    Lower triangular, rows sum to one, columns are pulled towards those of uniform causal attention,
    the sums over i >= j of 1/i. Arguments are those of `causal_elastic_attention`.

    >>> import torch, bistoch
    >>> q, k = torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(0)).unbind()
    >>> k[0] += 3
    >>> [round(bistoch.causal_elastic_plan(q, k, lam=lam, block=4)[:, 0].sum().item(), 1)
    ...  for lam in (0.0, 0.5, 1.0)]
    [10.6, 9.2, 7.3]
    """
    operator = "causal_elastic_plan"
    inputs.check_tokens(operator, query, key)
    unit = torch.eye(key.shape[-2], dtype=key.dtype, device=key.device)
    rule = Rule(lam, eps, block, prior, scale)
    return _attend(operator, query, key, unit, rule, mask, query_mask, key_mask, backend)


def _attend(
    operator: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rule: Rule,
    mask: Mask | None,
    query_mask: Tensor | None,
    key_mask: Tensor | None,
    backend: str,
) -> Tensor:
    batch = inputs.check_tokens(operator, query, key, value)
    inputs.check_square(operator, query, key, "query t and key t belong to the same moment")
    stream = pose_stream(operator, batch, query, key, value, rule, mask, query_mask, key_mask)
    chosen = choose_backend(
        operator, backend, _MODULES, query.device, _fastest(stream), plain=PLAIN
    )
    if chosen.name == "triton":
        check_new_enough(operator, query.device)
        if not takes(stream.query, stream.value):
            features, values = stream.query.shape[2], stream.value.shape[2]
            inputs.refuse_triton(operator, stream.query.dtype, features, values)
    stream, broken = clean_stream(stream)
    if chosen.halves:
        stream = as_they_came(stream, query.dtype)
    stream, order = sort_real(stream)
    result = show(unsort(chosen.solve(stream), order), broken)
    return result.reshape(*batch, *result.shape[1:]).to(query.dtype)


def _fastest(stream: Stream) -> str:
    """What "auto" stands for: the kernels, where they can run and there is work enough for them."""
    heads, n = stream.query.shape[:2]
    # a head is one thread's work
    enough = is_open(heads, n) or (2 * heads >= _threads() and heads * n * n >= SMALL)
    device = stream.query.device
    if device.type == "cpu" and HAS_NUMBA and enough:
        return "cpu"
    known = HAS_TRITON and takes(stream.query, stream.value) and is_new_enough(device)
    return "triton" if device.type == "cuda" and known else "streaming"


# a number of the machine: nothing for a compiler to trace
@assume_constant_result
def _threads() -> int:
    return torch.get_num_threads()
