"""Delta attention: sparse rows, dense rows and what one says about the others."""

import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import bistoch
from bistoch.functional.backends import BackendUnavailableError
from bistoch.lab.bench.memory import allocated_by, largest_allocation

MIB = 1 << 20


def tokens(n, d=5, e=3, batch=(2, 3), dtype=torch.float64):
    shapes = (n, d), (n, d), (n, e)
    return [torch.randn(*batch, *shape, dtype=dtype) for shape in shapes]


def by_definition(q, k, v, window, sink, stride, correction):
    """One row after the other."""

    def row(i, keys):
        weights = (k[keys] @ q[i] / math.sqrt(q.shape[-1])).softmax(0)
        return weights @ v[keys]

    def sparse(i):
        return row(i, [j for j in range(i + 1) if j < sink or i - j < window])

    rows = []
    for i in range(len(q)):
        g = i - i % stride
        if correction == "delta" or (correction == "recompute" and g == i):
            rows.append(sparse(i) + row(g, list(range(g + 1))) - sparse(g))
        else:
            rows.append(sparse(i))
    return torch.stack(rows)


@pytest.mark.parametrize("correction", ["delta", "recompute", "none"])
@pytest.mark.parametrize(
    ("window", "sink", "stride"), [(1, 0, 2), (3, 2, 4), (5, 40, 3), (7, 1, 9)]
)
def test_every_row_is_as_defined(window, sink, stride, correction):
    q, k, v = tokens(31, batch=())
    options = {"window": window, "sink": sink, "stride": stride, "correction": correction}
    result = bistoch.delta_attention(q, k, v, **options)
    torch.testing.assert_close(result, by_definition(q, k, v, **options))


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_chunks_are_the_plan_times_values(data):
    n = data.draw(st.sampled_from([1, 5, 128, 129, 270]))
    options = {
        "window": data.draw(st.sampled_from([1, 4, 127, 150])),
        "sink": data.draw(st.sampled_from([0, 3, 140])),
        "stride": data.draw(st.sampled_from([1, 2, 7, 500])),
        "correction": data.draw(st.sampled_from(["delta", "recompute", "none"])),
        "tail": data.draw(st.sampled_from([0, 1, 135, 400])),
    }
    q, k, v = tokens(n, batch=(2,))
    if data.draw(st.booleans()):
        options["key_mask"] = torch.rand(2, n) > data.draw(st.sampled_from([0.1, 0.9]))
    plan = bistoch.delta_plan(q, k, **options)
    torch.testing.assert_close(bistoch.delta_attention(q, k, v, **options), plan @ v)
    real = options.get("key_mask", torch.ones(2, n, dtype=torch.bool))
    torch.testing.assert_close(plan.sum(-1), real.to(plan.dtype))
    assert not plan.triu(1).any()
    assert not plan[~(real[..., None] & real[:, None])].any()


@pytest.mark.parametrize("options", [
    {}, {"window": 2, "sink": 1, "stride": 1}, {"window": 40, "sink": 33},
    {"window": 1, "sink": 0, "tail": 73},
], ids=str)  # fmt: skip
def test_it_is_causal_attention_where_nothing_is_left_out(options):
    q, k, v = tokens(73)
    wanted = scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(bistoch.delta_attention(q, k, v, **options), wanted)


def test_a_longer_sequence_does_not_change_its_beginning():
    q, k, v = tokens(300)
    options = {"window": 9, "sink": 2, "stride": 4}
    whole = bistoch.delta_attention(q, k, v, **options)
    part = bistoch.delta_attention(*(x[..., :141, :] for x in (q, k, v)), **options)
    torch.testing.assert_close(whole[..., :141, :], part)


SPARSE = {"window": 3, "sink": 2, "stride": 4}


@pytest.mark.parametrize("tail", [0, 5, 50])
def test_padding_anywhere_is_invisible(tail):
    q, k, v = (x.requires_grad_() for x in tokens(23, batch=(4,)))
    real = torch.zeros(4, 23, dtype=torch.bool)
    real[0, :16], real[1, 7:], real[2, 2:18], real[3] = True, True, True, torch.rand(23) > 0.4
    result = bistoch.delta_attention(q, k, v, query_mask=real, key_mask=real, tail=tail, **SPARSE)
    assert not result[~real].any()
    for b in range(4):
        alone = bistoch.delta_attention(*(x[b, real[b]] for x in (q, k, v)), tail=tail, **SPARSE)
        torch.testing.assert_close(result[b, real[b]], alone)
    result.square().sum().backward()
    assert all(not x.grad[~real].any() and x.grad.any() for x in (q, k, v))


def test_a_mask_on_either_side_hides_the_token():
    q, k, v = tokens(23)
    real = torch.rand(2, 1, 23) > 0.3
    both = bistoch.delta_attention(q, k, v, query_mask=real, key_mask=real, **SPARSE)
    for masks in (
        {"key_mask": real},
        {"query_mask": real},
        {"mask": real[..., None, :]},
        {"mask": torch.where(real[..., None, :], 0.0, -torch.inf)},
    ):
        torch.testing.assert_close(bistoch.delta_attention(q, k, v, **masks, **SPARSE), both)


def test_a_bias_of_the_keys_is_one_more_feature():
    q, k, v = tokens(23)
    bias = torch.randn(2, 1, 1, 23, dtype=torch.float64)
    real = torch.rand(2, 1, 23) > 0.3
    wider = torch.cat([q, torch.ones_like(q[..., :1])], -1)
    biased = torch.cat([k, bias.mT.expand(2, 3, 23, 1)], -1)
    options = {"inner": "softmax(scale=1.0)", "key_mask": real, "tail": 4} | SPARSE
    torch.testing.assert_close(
        bistoch.delta_attention(q, k, v, mask=bias, **options),
        bistoch.delta_attention(wider, biased, v, **options),
    )


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(0, 3), st.sampled_from([0.5, 3.0]))
def test_a_correction_is_what_was_dropped_up_to_its_share(seed, window, sink, scale):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 20, 4, generator=generator, dtype=torch.float64)
    options = {"window": window, "sink": sink, "inner": f"softmax(scale={scale})"}
    sparse = bistoch.delta_attention(q, k, v, correction="none", **options)
    dense = bistoch.delta_attention(q, k, v, stride=1, **options)
    rows, keys = torch.arange(20)[:, None], torch.arange(20)
    causal = keys <= rows
    kept = causal & ((keys > rows - window) | (keys < sink))
    plan = bistoch.softmax_plan(q, k, mask=causal, scale=scale)
    dropped = plan * ~kept
    # |delta - dropped part| <= H / (H + T) * largest kept value
    largest = torch.where(kept, v.norm(dim=-1), 0).amax(-1)
    bound = dropped.sum(-1) * largest
    assert ((dense - sparse - dropped @ v).norm(dim=-1) <= bound + 1e-12).all()


def smooth_tokens(highest, n=512, d=32):
    """Tokens that like their own position, smoothly: `highest` waves over the whole sequence."""
    generator = torch.Generator().manual_seed(0)
    waves = torch.linspace(1, highest, d // 2, dtype=torch.float64)
    phase = 2 * math.pi * torch.arange(n, dtype=torch.float64)[:, None] * waves / n
    noise = torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    query, key = 1.2 * torch.cat([phase.sin(), phase.cos()], -1) + 0.5 * noise
    return query, key, torch.randn(n, 8, generator=generator, dtype=torch.float64)


def errors(q, k, v, correction, strides):
    exact = scaled_dot_product_attention(q, k, v, is_causal=True)
    results = (
        bistoch.delta_attention(q, k, v, window=64, sink=4, stride=s, correction=correction)
        for s in strides
    )
    return torch.stack([(result - exact).norm() / exact.norm() for result in results])


def test_a_correction_beats_recomputing_where_neighbours_drop_the_same():
    strides = (2, 4, 8, 16, 32)
    q, k, v = smooth_tokens(highest=4)
    delta, recompute, sparse = (
        errors(q, k, v, correction, strides) for correction in ("delta", "recompute", "none")
    )
    assert (delta < recompute).all()
    assert (recompute < sparse).all()
    assert (delta.diff() > 0).all()
    assert (recompute.diff() > 0).all()
    assert delta[0] < 0.5 * sparse[0]
    assert delta[3] < 0.85 * sparse[3]


def test_a_correction_hurts_where_neighbours_differ():
    # four times as many waves: sixteen rows further on, other keys are dropped
    q, k, v = smooth_tokens(highest=16)
    sparse = errors(q, k, v, "none", [2])
    delta = errors(q, k, v, "delta", [2, 32])
    assert delta[0] < 0.5 * sparse
    assert delta[1] > sparse


def test_low_precision_is_computed_in_single():
    q, k, v = (x.bfloat16() for x in tokens(50))
    result = bistoch.delta_attention(q, k, v, **SPARSE)
    exact = bistoch.delta_attention(q.double(), k.double(), v.double(), **SPARSE)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, exact.bfloat16()) or (result - exact).abs().max() < 2e-2
    single = [x.float() for x in (q, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = bistoch.delta_attention(*single, **SPARSE)
    torch.testing.assert_close(inside, bistoch.delta_attention(*single, **SPARSE))


def test_the_gradient_is_the_same_whether_rows_are_kept_or_computed_again(monkeypatch):
    q, k, v = (x.requires_grad_() for x in tokens(150, batch=(2,)))
    bias = torch.randn(2, 1, 150, dtype=torch.float64, requires_grad=True)
    key_mask = torch.rand(2, 150) > 0.2
    weights = torch.randn(2, 150, 3, dtype=torch.float64)

    def attend(q, k, v, bias):
        return bistoch.delta_attention(q, k, v, mask=bias, key_mask=key_mask, tail=7, **SPARSE)

    plan = bistoch.delta_plan(q, k, mask=bias, key_mask=key_mask, tail=7, **SPARSE)
    wanted = torch.autograd.grad(((plan @ v) * weights).sum(), (q, k, v, bias))
    for few in (0, 1 << 40):
        monkeypatch.setattr("bistoch.functional._recompute.FEW", few)
        found = torch.autograd.grad((attend(q, k, v, bias) * weights).sum(), (q, k, v, bias))
        torch.testing.assert_close(found, wanted)


def test_memory_is_far_below_a_matrix():
    def train(n):
        q, k, v = (torch.randn(1, 1, n, 8, requires_grad=True) for _ in range(3))

        def step():
            bistoch.delta_attention(q, k, v, tail=64).sum().backward()

        return largest_allocation(step), allocated_by(step)[1]

    (_, small), (largest, large) = train(1024), train(4096)
    # a matrix of all pairs is 64 MiB; the mask of 128 dense rows is 2
    assert largest <= 2 * MIB
    assert large < 12 * MIB
    assert large < 4.5 * small


attend, plan = (inspect.unwrap(f) for f in (bistoch.delta_attention, bistoch.delta_plan))


@pytest.mark.parametrize(("change", "error", "sentence"), [
    ({"window": 0}, ValueError, "window must be at least 1, but it is 0"),
    ({"sink": -1}, ValueError, "sink must be at least 0"),
    ({"stride": 0}, ValueError, "stride must be at least 1"),
    ({"tail": 1.5}, TypeError, "tail must be a whole number"),
    ({"correction": "gamma"}, ValueError, "correction must be one of 'delta', 'mass', 'recompute'"),
    ({"inner": "sinkhorn"}, ValueError, "inner must be .* one by one.*'sinkhorn' is not"),
    ({"inner": "delta"}, ValueError, "'delta' is not; use inner='softmax'"),
    ({"mask": torch.ones(7, 7, dtype=torch.bool).tril()}, ValueError,
     r"mask must be the same for all queries.*causal by itself.*\(7, 7\)"),
    ({"key_mask": torch.ones(6, dtype=torch.bool)}, ValueError, "key_mask must broadcast"),
    ({"key": torch.randn(2, 3, 6, 5), "value": torch.randn(2, 3, 6, 3)}, ValueError,
     "there must be as many queries as keys.*7 queries and 6 keys"),
])  # fmt: skip
def test_errors_teach(change, error, sentence):
    q, k, v = tokens(7, dtype=torch.float32)
    arguments = {"query": q, "key": k, "value": v} | change
    with pytest.raises(error, match=f"^delta_attention: .*{sentence}"):
        attend(**arguments)


def test_the_text_of_the_inner_operator_is_checked():
    q, k, _ = tokens(7)
    with pytest.raises(TypeError, match="softmax: unknown option 'lam'"):
        plan(q, k, inner="softmax(lam=0.5)")
    with pytest.raises(ValueError, match="unknown name 'sofmax'"):
        plan(q, k, inner="sofmax")
    flat = bistoch.delta_plan(q, k, inner="softmax(eps=1e9)", stride=1)
    torch.testing.assert_close(flat[0, 0, 3, :4], torch.full((4,), 0.25, dtype=torch.float64))


OPTIONS = [
    {"window": 1, "sink": 0, "stride": 2},
    {"window": 3, "sink": 2, "stride": 4, "correction": "recompute", "tail": 3},
    {"window": 5, "sink": 40, "stride": 3, "tail": 70},
    {"window": 70, "sink": 13, "correction": "none"},
    {"window": 64, "sink": 17, "stride": 16, "tail": 100},
    {"window": 127, "sink": 3, "stride": 500},
    {"window": 16, "sink": 17, "stride": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n", [5, 67, 1301])
def test_kernels_are_the_reference(n, options):
    q, k, v = (x.requires_grad_() for x in tokens(n, batch=(2,)))
    bias = torch.randn(2, 1, n, dtype=torch.float64, requires_grad=True)
    options = {"key_mask": torch.rand(2, n) > 0.1, **options}
    weights, found = torch.randn(2, n, 3, dtype=torch.float64), []
    for backend in ("reference", "cpu"):
        result = bistoch.delta_attention(q, k, v, mask=bias, backend=backend, **options)
        grads = torch.autograd.grad((result * weights).sum(), (q, k, v, bias))
        found.append((result, *grads))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("scale", [0.1, 40.0])
def test_kernels_are_as_exact_as_the_reference_where_they_run(scale):
    q, k, v = (x[0, :1] for x in tokens(2503, d=64, e=64))
    exact = bistoch.delta_attention(scale * q, k, v, backend="reference")
    single = [x.float() for x in (scale * q, k, v)]
    errors = [
        (bistoch.delta_attention(*single, backend=backend) - exact).abs().max()
        for backend in ("reference", "cpu")
    ]
    assert errors[1] <= 2 * errors[0] + 1e-6


def test_kernels_read_shared_and_scattered_tokens_where_they_lie():
    n = 300
    q = torch.randn(2, n, 6, 16).transpose(1, 2).unflatten(1, (2, 3)).requires_grad_()
    k, v = (torch.randn(2, n, 2, 1, 16).movedim(1, 3).requires_grad_() for _ in range(2))
    found = []
    for tensors in ((q, k, v), (q, *(x.expand(2, 2, 3, n, 16).contiguous() for x in (k, v)))):
        result = bistoch.delta_attention(*tensors, window=16, sink=2, backend="cpu")
        found.append((result, *torch.autograd.grad(result.square().sum(), (q, k, v))))
    torch.testing.assert_close(found[0], found[1])


def mass_by_definition(q, k, v, window, sink, stride):
    """One row after the other."""
    scores = (q @ k.T / math.sqrt(q.shape[-1])).exp()
    rows = []
    for i in range(len(q)):
        g = i - i % stride
        kept = [j for j in range(i + 1) if j < sink or i - j < window]
        far = [j for j in range(g + 1) if j >= sink and g - j >= window]
        near, missed = scores[i, kept], scores[g, far]
        row = near @ v[kept] / near.sum()
        if far:
            mean_key = missed @ k[far] / missed.sum()
            mass = missed.sum() * ((q[i] - q[g]) @ mean_key / math.sqrt(q.shape[-1])).exp()
            share = mass / (mass + near.sum())
            row = (1 - share) * row + share * (missed @ v[far] / missed.sum())
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize(("window", "sink", "stride"), [(1, 0, 2), (3, 2, 4), (7, 1, 9)])
def test_every_row_with_its_mass_is_as_defined(window, sink, stride):
    q, k, v = tokens(31, batch=())
    options = {"window": window, "sink": sink, "stride": stride}
    result = bistoch.delta_attention(q, k, v, correction="mass", **options)
    torch.testing.assert_close(result, mass_by_definition(q, k, v, **options))


@pytest.mark.parametrize("tail", [0, 9])
def test_with_mass_the_plan_is_a_plan(tail):
    q, k, v = tokens(149, batch=(2,))
    options = {"key_mask": torch.rand(2, 149) > 0.2, "tail": tail, "correction": "mass"} | SPARSE
    plan = bistoch.delta_plan(q, k, **options)
    torch.testing.assert_close(bistoch.delta_attention(q, k, v, **options), plan @ v)
    torch.testing.assert_close(plan.sum(-1), options["key_mask"].to(plan.dtype))
    assert (plan >= 0).all()
    assert not plan.triu(1).any()


def test_mass_is_exact_where_rows_leave_out_equal_keys():
    # whatever the queries are: the log of the mass is linear in them
    q, k, v = tokens(60, batch=())
    k[2:], v[2:] = k[2].clone(), v[2].clone()
    result = bistoch.delta_attention(q, k, v, window=6, sink=2, stride=1, correction="mass")
    torch.testing.assert_close(result, scaled_dot_product_attention(q, k, v, is_causal=True))
    # rows of a group leave out a few keys more than its first
    k[2:], v[2:] = 0, 0
    share = bistoch.delta_attention(q, k, v, window=6, sink=2, stride=4, correction="mass")
    delta = bistoch.delta_attention(q, k, v, window=6, sink=2, stride=4)
    exact = scaled_dot_product_attention(q, k, v, is_causal=True)
    assert (share - exact).norm() < 0.5 * (delta - exact).norm()


def test_the_gradient_with_mass_is_exact():
    q, k, v = (x.requires_grad_() for x in tokens(17, batch=(1,)))
    bias = torch.randn(1, 1, 17, dtype=torch.float64, requires_grad=True)

    def attend(q, k, v, bias):
        return bistoch.delta_attention(q, k, v, mask=bias, correction="mass", tail=2, **SPARSE)

    torch.autograd.gradcheck(attend, (q, k, v, bias))


def test_what_has_no_kernel_says_so():
    q, k, v = tokens(7)
    with pytest.raises(BackendUnavailableError, match="kernels for softmax rows"):
        bistoch.delta_attention(q, k, v, inner="sigmoid", backend="cpu")
    with pytest.raises(ValueError, match=r"only softmax rows.*inner='softmax'"):
        bistoch.delta_attention(q, k, v, inner="sigmoid", correction="mass")
