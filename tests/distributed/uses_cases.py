"""What ranks do in test_uses: the same as one process that holds everything."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import bistoch
import bistoch.distributed as bd
from distributed.elastic_cases import compare, numbers

SAMPLES, PROTOTYPES = 23, 7
# samples of each rank, uneven and sometimes none
ROWS = {1: (23,), 2: (9, 14), 3: (11, 0, 12), 4: (6, 1, 9, 7)}


def own(x, ranks, dim=0, sizes=ROWS):
    return x.split(list(sizes[ranks.size]), dim)[ranks.rank]


def code_options(name):
    mass = numbers(PROTOTYPES, seed=2).exp()
    return {
        "plain": {},
        "softmax": {"iters": 0},
        "one step": {"iters": 1},
        "elastic": {"lam": torch.tensor(0.6, dtype=torch.float64), "iters": 5},
        "temperature": {"eps": torch.tensor(0.7, dtype=torch.float64)},
        "shares": {"column_mass": mass / mass.sum() * SAMPLES, "lam": 0.8},
        "padding": {"query_mask": torch.arange(SAMPLES) % 5 > 0},
    }[name]


def codes(ranks, names, backend):
    """Codes and every gradient beside those of one process."""
    found = {}
    for name in names:
        options = {"eps": 0.5} | code_options(name)

        def over_ranks(**given):
            return {"codes": bd.prototype_codes(**given, backend=backend, group=ranks.group)}

        def alone(**given):
            return {"codes": bistoch.prototype_codes(**given, backend="reference")}

        scores = {"scores": numbers(SAMPLES, PROTOTYPES, seed=1)}
        sharded = {"scores": (-2, ROWS), "query_mask": (-1, ROWS)}
        found[name] = compare(
            ranks, over_ranks, alone, scores, options, {"codes": (-2, ROWS)}, sharded
        )
    return found


def published(scores, eps, steps, ranks):
    """The steps of the published code: exponentials, then sums over processes in turn."""
    plan = torch.exp(scores / eps).T
    count = torch.tensor(float(plan.shape[1]))
    total = plan.sum()
    for x in (count, total):
        dist.all_reduce(x, group=ranks.group)
    plan = plan / total
    for _ in range(steps):
        rows = plan.sum(1, keepdim=True)
        dist.all_reduce(rows, group=ranks.group)
        plan = plan / rows / plan.shape[0]
        plan = plan / plan.sum(0, keepdim=True) / count
    return (plan * count).T


def published_codes(ranks):
    """Ours beside the published steps: at small scores, and where an exponential overflows."""
    whole = numbers(SAMPLES, PROTOTYPES, seed=3)
    scores = own(whole, ranks)
    near = published(scores, 0.5, 3, ranks) - bd.prototype_codes(scores, eps=0.5, group=ranks.group)
    large = (4 * scores).float()
    theirs = published(large, 0.04, 3, ranks)
    ours = bd.prototype_codes(large, eps=0.04, group=ranks.group)
    exact = own(bistoch.prototype_codes(4 * whole, eps=0.04), ranks)
    return {
        "apart": near.abs().amax().item() if near.numel() else 0.0,
        "finite": bool(theirs.isfinite().all()) and bool(len(scores)),
        "ours": (ours - exact).abs().amax().item() if ours.numel() else 0.0,
    }


def broken_codes(ranks, iters):
    """A score that is not finite, on one rank, shows on all of them."""
    whole = numbers(SAMPLES, PROTOTYPES, seed=3)
    whole[1, 2] = torch.nan
    found = bd.prototype_codes(own(whole, ranks), eps=0.5, iters=iters, group=ranks.group)
    expected = own(bistoch.prototype_codes(whole, eps=0.5, iters=iters), ranks)
    return bool((found.isnan() == expected.isnan()).all())


def wrong_codes(ranks, what):
    scores = torch.zeros(3, PROTOTYPES + (ranks.rank if what == "prototypes" else 0))
    iters = 3 + (ranks.rank if what == "iters" else 0)
    bd.prototype_codes(scores, iters=iters, group=ranks.group)


def mesh_of(ranks):
    return DeviceMesh.from_group(ranks.group, "cpu")


TOKENS = {1: (11,), 2: (4, 7), 3: (5, 0, 6), 4: (3, 1, 5, 2)}
REAL = torch.arange(11)[None] < torch.tensor([[8], [11]])
LAYERS = {
    "softmax": ("softmax", {}),
    "sinkhorn": ("sinkhorn(iters=5)", {}),
    "elastic": ("elastic(lam=0.4, iters=5, learn='head')", {}),
    "causal": ("causal_elastic(lam=0.4, block=4, learn='head')", {}),
    "padding": ("elastic(lam=0.5)", {"key_mask": (-1, REAL)}),
    "shares": ("elastic(lam=0.5)", {"column_mass": (-1, numbers(2, 11, seed=4).exp())}),
    "bias": ("elastic(lam=0.5)", {"mask": (-2, numbers(11, 11, seed=5))}),
}  # fmt: skip


def weights_apart(ranks, alone, over_ranks):
    """The largest difference of gradients of weights, summed over ranks."""
    worst = 0.0
    for one, mine in zip(alone.parameters(), over_ranks.parameters(), strict=True):
        total = torch.zeros_like(one) if mine.grad is None else mine.grad.clone()
        dist.all_reduce(total, group=ranks.group)
        expected = torch.zeros_like(one) if one.grad is None else one.grad
        worst = max(worst, (total - expected).abs().max().item())
    return worst


def largest(x):
    return x.abs().max().item() if x.numel() else 0.0


def layers(ranks):
    """`nn.Attention` over a mesh: states, gradients of tokens, and of weights."""
    found, mesh = {}, mesh_of(ranks)
    for name, (operator, given) in LAYERS.items():
        torch.manual_seed(0)
        alone = bistoch.nn.Attention(6, 2, operator).double()
        over_ranks = bistoch.nn.Attention(6, 2, operator, mesh=mesh).double()
        over_ranks.load_state_dict(alone.state_dict())
        whole = numbers(2, 11, 6, seed=3).requires_grad_()
        mine = own(whole.detach(), ranks, 1, TOKENS).clone().requires_grad_()
        weight = numbers(2, 11, 6, seed=6)
        expected = alone(whole, **{key: x for key, (_, x) in given.items()})
        parts = {key: own(x, ranks, axis, TOKENS) for key, (axis, x) in given.items()}
        result = over_ranks(mine, **parts)
        (expected * weight).sum().backward()
        (result * own(weight, ranks, 1, TOKENS)).sum().backward()
        found[name] = {
            "states": largest(result - own(expected, ranks, 1, TOKENS)),
            "tokens": largest(mine.grad - own(whole.grad, ranks, 1, TOKENS)),
            "weights": weights_apart(ranks, alone, over_ranks),
        }
    return found


def refused_layer(ranks):
    said = []
    for call in (
        lambda: bistoch.nn.Attention(6, 2, "hard", mesh=mesh_of(ranks)),
        lambda: bistoch.nn.Attention(6, 2, "elastic", mesh=mesh_of(ranks)).plan(torch.ones(3, 6)),
    ):
        try:
            call()
        except (ValueError, NotImplementedError) as error:
            said.append(str(error))
    return said


def new_bert():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=17, num_hidden_layers=2, hidden_size=8, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=16,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False).double().eval()


def new_llama():
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=17, num_hidden_layers=2, hidden_size=8, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=12, max_position_embeddings=16,
    )  # fmt: skip
    return LlamaModel(config).double().eval()


# who is converted to what, besides what stays softmax
MODELS = {
    "bert": (new_bert, "elastic(lam=0.5, learn='head', iters=5)", None, None),
    "bert, one layer": (new_bert, "elastic(lam=0.5, iters=5)", [1], None),
    "bert, one head": (new_bert, "sinkhorn(iters=5)", None, [1]),
    "llama": (new_llama, "causal_elastic(lam=0.5, block=4)", None, None),
    "llama, one layer": (new_llama, "causal_elastic(lam=0.5, block=4)", [0], None),
    "llama, one head": (new_llama, "causal_elastic(lam=0.5, block=4)", None, [1]),
}


def pretrained(ranks, names):
    """Models of transformers with a sequence over ranks, of which the end of one is padding."""
    from bistoch.integrations.huggingface import convert, shard_sequence

    # a model without tokens is a question for transformers, not for us
    found, sizes = {}, TOKENS | {3: (5, 1, 5)}
    for name in names:
        new, operator, chosen, heads = MODELS[name]
        alone, over_ranks = (convert(new(), operator, layers=chosen, heads=heads) for _ in range(2))
        shard_sequence(over_ranks, mesh_of(ranks))
        ids = torch.randint(17, (2, 11), generator=torch.Generator().manual_seed(1))
        places = torch.arange(11)[None].expand(2, -1)
        more = {"use_cache": False} if name.startswith("llama") else {}
        inputs = {"input_ids": ids, "attention_mask": REAL.long(), "position_ids": places}
        expected = alone(**inputs, **more).last_hidden_state
        parts = {key: own(x, ranks, 1, sizes) for key, x in inputs.items()}
        result = over_ranks(**parts, **more).last_hidden_state
        weight = numbers(2, 11, 8, seed=6) * REAL[..., None]
        (expected * weight).sum().backward()
        (result * own(weight, ranks, 1, sizes)).sum().backward()
        apart = (result - own(expected, ranks, 1, sizes)) * own(REAL, ranks, 1, sizes)[..., None]
        found[name] = {
            "states": largest(apart), "weights": weights_apart(ranks, alone, over_ranks)
        }  # fmt: skip
    return found


QUERIES, DOCUMENTS = 53, 29
BANKS = {1: (53,), 2: (20, 33), 3: (7, 1, 45), 4: (13, 20, 8, 12)}
INDEXES = {1: (29,), 2: (17, 12), 3: (1, 11, 17), 4: (4, 9, 15, 1)}


def search_vectors():
    documents = numbers(DOCUMENTS, 5, seed=1)
    documents[3] = 0.5
    queries = documents[torch.arange(QUERIES) % DOCUMENTS] + 0.7 * numbers(QUERIES, 5, seed=2)
    return queries + 0.3, documents


def corrections(ranks, block):
    """`HubCorrection.fit` with sharded queries, and with sharded documents."""
    from bistoch.retrieval import HubCorrection, vectors

    queries, documents = search_vectors()
    found, before = {}, vectors.BLOCK_ELEMENTS
    for name, options in {
        "auto": {"tol": 1e-9, "iters": 5000},
        "sharp": {"eps": 0.01, "lam": 0.9, "tol": 1e-9, "iters": 5000},
        "few": {"eps": 0.2, "lam": 0.5, "tol": 10.0, "iters": 3},
    }.items():
        alone = HubCorrection(**options).fit(queries, documents)
        vectors.BLOCK_ELEMENTS = block
        try:
            some = HubCorrection(**options).fit(
                own(queries, ranks, 0, BANKS), documents, group=ranks.group
            )
            mine = own(documents, ranks, 0, INDEXES)
            other = HubCorrection(**options).fit(
                queries, mine, sharded="documents", mesh=mesh_of(ranks)
            )
        finally:
            vectors.BLOCK_ELEMENTS = before
        bias, new = torch.from_numpy(alone.bias), numbers(3, 5, seed=4)
        added = [torch.from_numpy(x.add(new)) for x in (alone, some, other)]
        apart = {
            "queries": largest(torch.from_numpy(some.bias[:DOCUMENTS]) - bias),
            "documents": largest(
                torch.from_numpy(other.bias[: len(mine)]) - own(bias, ranks, 0, INDEXES)
            ),
            "added to queries": largest(added[1] - added[0]),
            "added to documents": largest(added[2] - added[0]),
            "eps": max(abs(x.fitted_eps - alone.fitted_eps) for x in (some, other)),
            "bank": largest(some._of_fit().bank - queries),
        }
        found[name] = apart
    return found


def wrong_correction(ranks, what):
    from bistoch.retrieval import HubCorrection

    queries, documents = search_vectors()
    lam = 0.9 - 0.1 * ranks.rank if what == "lam" else 0.9
    if what == "documents":
        documents = documents[: DOCUMENTS - ranks.rank]
    if what == "nan" and ranks.rank == 1:
        queries[2] = torch.nan
    HubCorrection(lam=lam).fit(queries, documents, group=ranks.group)
