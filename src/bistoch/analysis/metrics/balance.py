"""How a plan spends and how its keys receive: entropy of rows, load of columns.

The functions of a load take `column_load` of a plan, or the one that `stream_plan` finds without
the plan. Half precision is computed and returned in float32. Padding counts nowhere.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bistoch.analysis.metrics._real import divide, read_mask, read_plan
from bistoch.functional import inputs
from bistoch.functional.pose import working_dtype


def row_entropy(
    plan: Float[Tensor, "*b n m"],
    *,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b n"]:
    """How widely every query spreads its attention, in nats: 0 for one key, log m for all alike.

        H_i = -sum_j P_ij log P_ij

    Args:
        plan: one plan or many.
        query_mask, key_mask: True where the token is real; a padded query has entropy 0.

    >>> row_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([0.0000, 0.6931])

    Reference: Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy
    Collapse, ICML 2023.
    """
    plan, _, _ = read_plan("row_entropy", plan, query_mask, key_mask)
    # the log of one keeps the gradient of an empty entry finite
    return 0 - (plan * torch.where(plan > 0, plan, 1).log()).sum(-1)


def mean_entropy(
    plan: Float[Tensor, "*b n m"],
    *,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b"]:
    """The mean row entropy as a share of the largest possible: in [0, 1], 1 for a uniform plan.

        mean_i H_i / log m

    Arguments are those of `row_entropy`. Queries and keys that are padding do not count; with one
    key there is nothing to spread over, and the share is 0.

    >>> round(mean_entropy(torch.full((3, 5), 0.2)).item(), 5)
    1.0
    """
    plan, queries, keys = read_plan("mean_entropy", plan, query_mask, key_mask)
    rows = row_entropy(plan)
    largest = keys.sum(-1).clamp_min(1).log()
    return divide(rows.sum(-1), queries.sum(-1) * largest)


def column_sums(
    plan: Float[Tensor, "*b n m"],
    *,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b m"]:
    """What every key receives from all real queries: from 0 to n, and n in total.

        c_j = sum_i P_ij

    Arguments are those of `row_entropy`.

    >>> column_sums(torch.tensor([[0.9, 0.1], [0.7, 0.3]]))
    tensor([1.6000, 0.4000])
    """
    return read_plan("column_sums", plan, query_mask, key_mask)[0].sum(-2)


def column_load(
    plan: Float[Tensor, "*b n m"],
    *,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b m"]:
    """What every key receives over what it should: 1 for all keys in balance, from 0 to m.

        c_j / b_j,   b scaled to the total of c

    Args:
        plan, query_mask, key_mask: as for `row_entropy`; the load of a padded key is 0.
        column_mass: what the columns should sum to, by default the same for every real key.

    >>> column_load(torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]))
    tensor([2.5000, 0.5000, 0.0000])
    """
    sums = read_plan("column_load", plan, query_mask, key_mask)[0].sum(-2)
    return _load_of("column_load", sums, key_mask, column_mass)


def load_of(
    sums: Float[Tensor, "*b m"],
    *,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b m"]:
    """The load of keys whose column sums are known; see `column_load`.

    >>> load_of(torch.tensor([3.0, 1.0, 2.0]))
    tensor([1.5000, 0.5000, 1.0000])
    """
    inputs.check_floating("load_of", "sums", sums, axes="(*b, m)", rank=1)
    return _load_of("load_of", sums, key_mask, column_mass)


def load_gini(
    load: Float[Tensor, "*b m"], *, key_mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*b"]:
    """How unequal the loads are: 0 when all keys receive alike, 1 - 1/m when one receives all.

        sum_jk |l_j - l_k| / (2 m sum_j l_j)

    Args:
        load: the load, or the sum, of every key.
        key_mask: True where the key is real.

    >>> load_gini(torch.tensor([1.0, 1.0, 1.0])), load_gini(torch.tensor([0.0, 4.0, 0.0, 0.0]))
    (tensor(0.), tensor(0.7500))

    Reference: Gini, Variabilita e mutabilita, 1912.
    """
    load, keys = _read_load("load_gini", load, key_mask)
    if load.shape[-1] == 0:
        return load.sum(-1)
    count = keys.sum(-1)
    # padding comes first when sorted, with load zero: ranks are counted from the first real key
    order = load.masked_fill(keys == 0, -1).sort(-1).values.clamp_min(0)
    rank = torch.arange(1, load.shape[-1] + 1, device=load.device) - (
        load.shape[-1] - count[..., None]
    )
    total = load.sum(-1)
    weighed = ((2 * rank - count[..., None] - 1) * order).sum(-1)
    return divide(weighed, count * total).clamp_min(0)


def load_kl(
    load: Float[Tensor, "*b m"],
    *,
    key_mask: Bool[Tensor, "..."] | None = None,
    column_mass: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b"]:
    """How far the keys' shares are from the wanted ones, in nats: 0 in balance, at most log m.

        KL(c | b) = sum_j p_j log(l_j),   p_j the share of all mass that key j receives

    Args:
        load: what `column_load` returned.
        key_mask, column_mass: the same that `column_load` was given. With a `column_mass` the
            largest value is the log of one over its smallest share.

    >>> load_kl(torch.tensor([1.0, 1.0])), load_kl(torch.tensor([2.0, 0.0]))
    (tensor(0.), tensor(0.6931))
    """
    load, _ = _read_load("load_kl", load, key_mask)
    wanted = _wanted("load_kl", load, key_mask, column_mass)
    received = load * wanted
    share = divide(received, received.sum(-1, keepdim=True))
    return (share * torch.where(load > 0, load, 1).log()).sum(-1).clamp_min(0)


def load_deviation(
    load: Float[Tensor, "*b m"], *, key_mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*b"]:
    """The mean distance of a load from its even share: 0 in balance, below 2.

        mean_j |l_j - 1|

    Arguments are those of `load_peak`; padded keys do not count.

    >>> load_deviation(torch.tensor([0.5, 2.0, 0.5]))
    tensor(0.6667)

    Reference: Sander et al., Sinkformers, AISTATS 2022, who watch it fall in training.
    """
    load, keys = _read_load("load_deviation", load, key_mask)
    return divide(((load - 1).abs() * keys).sum(-1), keys.sum(-1))


def load_peak(
    load: Float[Tensor, "*b m"], *, key_mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*b"]:
    """The load of the most loaded key: 1 in balance, m when one key receives everything.

    >>> load_peak(torch.tensor([0.5, 2.0, 0.5]))
    tensor(2.)
    """
    load, _ = _read_load("load_peak", load, key_mask)
    return load.amax(-1) if load.shape[-1] else load.sum(-1)


def doubly_stochastic_error(
    plan: Float[Tensor, "*b n m"],
    *,
    query_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b"]:
    """The largest relative error of a row or column sum: 0 for a doubly stochastic plan.

        max(max_i |sum_j P_ij - 1|, max_j |sum_i P_ij / b_j - 1|),   b_j = n / m

    Arguments are those of `row_entropy`; real tokens only are counted.

    >>> doubly_stochastic_error(torch.eye(3)), doubly_stochastic_error(torch.eye(3)[[0, 0, 0]])
    (tensor(0.), tensor(2.))
    """
    plan, queries, keys = read_plan("doubly_stochastic_error", plan, query_mask, key_mask)
    wanted = divide(queries.sum(-1, keepdim=True) * keys, keys.sum(-1, keepdim=True))
    rows = (plan.sum(-1) - 1).abs() * queries
    columns = (divide(plan.sum(-2), wanted) - 1).abs() * (wanted > 0)
    if 0 in plan.shape[-2:]:
        return plan.sum((-2, -1))
    return torch.maximum(rows.amax(-1), columns.amax(-1))


def _read_load(metric: str, load: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    inputs.check_floating(metric, "load", load, axes="(*b, m)", rank=1)
    load = load.to(working_dtype(load.dtype))
    keys = read_mask(metric, "key_mask", key_mask, load.shape, load)
    return load.masked_fill(keys == 0, 0), keys


def _load_of(
    metric: str, sums: Tensor, key_mask: Tensor | None, column_mass: Tensor | None
) -> Tensor:
    wanted = _wanted(metric, sums, key_mask, column_mass)
    scaled = divide(wanted * sums.sum(-1, keepdim=True), wanted.sum(-1, keepdim=True))
    return divide(sums, scaled)


def _wanted(
    metric: str, sums: Tensor, key_mask: Tensor | None, column_mass: Tensor | None
) -> Tensor:
    keys = read_mask(metric, "key_mask", key_mask, sums.shape, sums)
    if column_mass is None:
        return keys
    inputs.check_column_mass(metric, column_mass, sums.shape, sums.device)
    return keys * column_mass
