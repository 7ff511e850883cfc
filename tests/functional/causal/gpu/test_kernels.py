"""The Triton kernels of causal balance against the reference, in the interpreter."""

import pytest
import torch

import bistoch
from bistoch.functional.causal.triton import blocks
from bistoch.functional.kernels.gpu import record_launches
from bistoch.functional.kernels.tuning import VARIABLE, use_blocks
from precision import assert_as_good

HEADS, D, E = 2, 5, 3
slow = pytest.mark.slow


def tokens(n, size=2.0, d=D, e=E):
    q, k = size * torch.randn(2, HEADS, n, d, dtype=torch.float64)
    return q, k, torch.randn(HEADS, n, e, dtype=torch.float64)


def per_head():
    return {
        "lam": torch.tensor([0.6, 1.0], dtype=torch.float64),
        "eps": torch.tensor([0.7, 1.3], dtype=torch.float64),
    }


def run(backend, leaves, dtype=torch.float64, **options):
    """The result and the gradients of a fixed loss; tensors among the options are leaves too."""
    leaves = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
    for name, option in options.items():
        if isinstance(option, torch.Tensor) and option.dtype.is_floating_point:
            options[name] = option.detach().to(dtype).requires_grad_()
            leaves.append(options[name])
    result = bistoch.causal_elastic_attention(*leaves[:3], backend=backend, **options)
    weights = torch.linspace(-1, 9, result.numel(), dtype=dtype).reshape(result.shape).cos()
    grads = torch.autograd.grad(
        (result * weights).sum(), leaves, allow_unused=True, materialize_grads=True
    )
    return result.detach(), *grads


def compare(*leaves, **options):
    wanted, found = (run(backend, leaves, **options) for backend in ("reference", "triton"))
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, atol=1e-11, rtol=1e-9)


# blocks of part of a tile, of several tiles, one only; a row of tokens; the end of a block
SIZES = [(37, 9), *(pytest.param(*x, marks=slow) for x in
         [(1, 4), (7, 3), (53, 5), (61, 1), (67, 20), (48, 16), (29, 64), (113, 50)])]  # fmt: skip


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("n", "block"), SIZES)
def test_every_cut_is_the_reference(n, block):
    compare(*tokens(n), block=block, prior=0.05, **per_head())


@pytest.mark.usefixtures("small_tiles", "short_spans")
@pytest.mark.parametrize(
    ("n", "block"), [(29, 7), pytest.param(61, 4, marks=slow), pytest.param(97, 24, marks=slow)]
)
def test_accounts_that_were_not_kept_are_made_again(n, block):
    assert blocks.layout_of(n, block).every > 1
    bias = torch.randn(n, n, dtype=torch.float64)
    real = torch.arange(n) < torch.tensor([[n], [n - 13]])
    compare(*tokens(n), block=block, mask=bias, key_mask=real, **per_head())


@slow
# one of the masks is the same for all queries, which may be a padding mask that lacks its half
@pytest.mark.filterwarnings("ignore:.*without query_mask:bistoch.PaddingWarning")
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("shape", [(2, 37, 37), (37, 37), (2, 1, 37), (2, 37, 1), (1, 1)])
@pytest.mark.parametrize("kind", ["boolean", "bias"])
def test_masks(shape, kind):
    mask = torch.randn(shape, dtype=torch.float64)
    mask = mask > -0.7 if kind == "boolean" else mask.masked_fill(mask < -1.5, -torch.inf)
    compare(*tokens(37), block=9, mask=mask, **per_head())


@pytest.mark.usefixtures("small_tiles")
def test_a_row_that_sees_nothing_and_padding_in_between():
    mask = torch.ones(23, 23, dtype=torch.bool)
    mask[[0, 17]] = False
    mask[:, 13] = False
    real = torch.arange(23) % torch.tensor([3, 7])[:, None] != 1
    compare(*tokens(23), block=6, mask=mask, key_mask=real)


@pytest.mark.usefixtures("small_tiles")
def test_features_in_chunks():
    compare(*tokens(19, d=70, e=67), block=8)


@slow
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("d", [0, 1, 16, 97, 128, 256])
def test_any_width(d):
    compare(*tokens(19, d=d, e=max(d, 1)), block=8)


@slow
def test_tiles_as_they_are_on_a_device():
    compare(*tokens(149, d=16, e=16), block=64, **per_head())


def assert_as_the_reference(draw, draws, dtype=torch.float32, **options):
    """Errors are at most twice those of the reference at the same precision."""
    exact, theirs, ours = [], [], []
    for _ in range(draws):
        leaves = [x.to(dtype) for x in draw()]
        exact.append(run("reference", [x.double() for x in leaves], **options))
        theirs.append(run("reference", leaves, dtype, **options))
        ours.append(run("triton", leaves, dtype, **options))
    names = ("result", "query", "key", "value")
    assert_as_good(names, exact, theirs, ours, terms=2 * leaves[0].shape[-2])


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=slow),
                                   pytest.param(torch.float32, marks=slow)])  # fmt: skip
def test_as_good_as_the_reference(dtype):
    """Half precision tokens and values are read as they are; everything else is float32."""
    assert_as_the_reference(lambda: tokens(29), 1 if dtype == torch.bfloat16 else 3, dtype, block=8)


@pytest.mark.usefixtures("small_tiles", "truncated_products")
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=slow)])
def test_as_good_as_the_reference_with_units_that_drop_bits(dtype):
    """Values far from zero: gradients of tokens are small differences of large products."""

    def far_values():
        query, key, value = tokens(29, 1.0, d=16, e=16)
        return query, key, 3 + value

    assert_as_the_reference(far_values, 2, dtype, block=8)


@pytest.mark.parametrize("block", [10**9, 2**31 - 1, 2**63 - 1])
def test_a_block_longer_than_the_sequence(block):
    """Its end may be more than 32 bits count."""
    compare(*tokens(20), block=block)


@pytest.mark.usefixtures("small_tiles")
def test_results_are_means_of_values():
    """In float32, before they are rounded to half precision, whatever weights are rounded to."""
    query, key, _ = (x.half() for x in tokens(29, d=16, e=16))
    with record_launches() as launches:
        value = torch.full_like(key, 3)
        bistoch.causal_elastic_attention(query, key, value, block=8, backend="triton")
        bistoch.causal_elastic_step(query, key, value, block=8, backend="triton")
    found = [x.arguments.get("output", x.arguments.get("found_rows")) for x in launches]
    found = [x for x in found if x is not None]
    assert len(found) == 1 + 4
    assert all((x - 3).abs().max() < 4e-6 for x in found)


@pytest.mark.usefixtures("small_tiles", "ordered_products")
@pytest.mark.parametrize("draws", [1, pytest.param(8, marks=slow)])
def test_extreme_scores_in_float32(draws):
    # queries and keys of 1000 each: scores in the millions
    assert_as_the_reference(lambda: tokens(23, 1000.0), draws, block=6)


@pytest.mark.usefixtures("small_tiles", "ordered_products")
def test_a_row_that_sees_one_key_has_no_gradient_however_large_tokens_are():
    """Whatever is left of dP minus its mean would be multiplied with keys and queries of 1000."""
    leaves = [x.float().requires_grad_() for x in tokens(23, 1000.0, d=64, e=64)]
    mask = torch.eye(23, dtype=torch.bool)
    found = bistoch.causal_elastic_attention(*leaves, mask=mask, block=6, backend="triton")
    weights = torch.randn(found.shape)
    query_grad, key_grad, _ = torch.autograd.grad((found * weights).sum(), leaves)
    assert not query_grad.any()
    assert not key_grad.any()


@slow
@pytest.mark.usefixtures("small_tiles", "ordered_products")
def test_a_sink_that_outweighs_all_others():
    # 90 above all other scores: what is left for these is below what float32 can hold
    n = 40
    q, k, v = (x[0].float() for x in tokens(n, size=1.0))
    q, k = torch.cat([q, torch.ones(n, 1)], -1), torch.cat([k, torch.zeros(n, 1)], -1)
    k[0, -1] = 90 * 6**0.5
    exact = run("reference", (q, k, v), block=4)
    found, theirs = (run(name, (q, k, v), torch.float32, block=4) for name in ("triton", "cpu"))
    for one, other, best in zip(found, theirs, exact, strict=True):
        assert one.isfinite().all()
        error, their_error = ((x - best).square().mean().sqrt() for x in (one, other))
        assert error <= 2 * their_error + torch.finfo(torch.float32).eps


@slow
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("block", [5, 23])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keys_that_are_all_alike_have_the_gradient_of_the_reference(block, dtype):
    # rows share fairly, and the level of new keys is zero, where it has a kink
    q, k, v = tokens(23)
    leaves, bias = (q, k[:, :1].expand_as(k), v), torch.zeros(23, 23)
    options = {"mask": bias, "block": block, "lam": torch.tensor([0.6, 1.0])}
    wanted, found = (run(x, leaves, dtype, **options) for x in ("reference", "triton"))
    for one, other in zip(wanted, found, strict=True):
        size = max(one.abs().max().item(), 0.1)
        assert (one - other).abs().max() < 1e3 * torch.finfo(dtype).eps * size


@pytest.mark.usefixtures("small_tiles")
def test_nothing_leaks_and_every_run_is_the_same_bit_by_bit():
    q, k, v = (x.float() for x in tokens(23))

    def attend(*tensors):
        return bistoch.causal_elastic_attention(*tensors, block=6, backend="triton")

    before = attend(q, k, v)
    assert torch.equal(attend(q, k, v), before)
    changed = [torch.cat([x[:, :13], torch.randn(HEADS, 10, x.shape[2])], 1) for x in (q, k, v)]
    assert torch.equal(attend(*changed)[:, :13], before[:, :13])


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("masked", [False, pytest.param(True, marks=slow)], ids=["", "masked"])
def test_few_heads_split_their_keys(monkeypatch, masked):
    monkeypatch.setattr(blocks, "LONG", 8)
    q, k, v = tokens(23)
    options = {"block": 6, "prior": 0.05, **per_head()}
    if masked:
        options["mask"] = torch.randn(23, 23).double()
        options["key_mask"] = torch.arange(23) % torch.tensor([3, 7])[:, None] != 1
    wanted = bistoch.causal_elastic_attention(q, k, v, backend="reference", **options)
    with record_launches() as launches:
        found = bistoch.causal_elastic_attention(q, k, v, backend="triton", **options)
    # the last block leaves nothing behind
    assert len(launches) == 3 * len(range(0, 23, 6)) - 1
    torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-9)


def sizes_of(n, **options):
    leaves = [torch.randn(1, n, 4, requires_grad=True) for _ in range(3)]
    with record_launches(run=False) as launches:
        bistoch.causal_elastic_attention(*leaves, backend="triton", **options).sum().backward()
    return [x.numel() for _, _, given in launches for x in given.values() if torch.is_tensor(x)]


def test_nothing_of_n_x_n_is_in_memory():
    # all accounts of 32 blocks, or those before 32 spans, and the blocks of one span
    assert max(sizes_of(2048)) <= 2 * 32 * 2048
    assert max(sizes_of(16384)) <= 2 * 32 * 16384
    # one matrix would be 2^28 numbers
    assert sum(set(sizes_of(16384))) < 1 << 23


def test_launches():
    def count(n, **options):
        leaves = [torch.randn(2, n, 4, requires_grad=True) for _ in range(3)]
        with record_launches(run=False) as forward:
            result = bistoch.causal_elastic_attention(*leaves, backend="triton", **options)
        with record_launches(run=False) as backward:
            result.sum().backward()
        return len(forward), len(backward)

    assert count(512) == (1, 1 + 3)
    assert count(2048) == (1, 1 + 3)
    assert count(512, mask=torch.zeros(512, 512, requires_grad=True)) == (1, 1 + 4)
    # four spans of 16 blocks
    assert count(4096) == (1, 1 + 4 * 4)


def test_blocks_can_be_chosen(monkeypatch):
    """By the environment, and by a program, for every kernel that has some."""
    leaves = [torch.randn(1, 70, 4, requires_grad=True) for _ in range(3)]
    bias = torch.zeros(70, 70, requires_grad=True)

    def sizes():
        with record_launches(run=False) as launches:
            result = bistoch.causal_elastic_attention(*leaves, mask=bias, backend="triton")
            result.sum().backward()
        return [x.arguments["BLOCK_X"] for x in launches if "BLOCK_X" in x.arguments]

    assert sizes() == [64, 32, 32, 32, 32]
    names = ("attend", "vectors", "queries", "keys", "bias")
    monkeypatch.setenv(VARIABLE, ",".join(f"causal_{name}=16x32x2x1" for name in names))
    assert sizes() == [16] * 5
    with use_blocks({"causal_keys": (128, 16, 4, 1)}):
        assert sizes() == [16, 16, 16, 128, 16]


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_nothing_to_see(shape):
    q = torch.randn(*shape, 4, requires_grad=True)
    result = bistoch.causal_elastic_attention(q, q, q, backend="triton")
    result.sum().backward()
    assert result.shape == (*shape, 4)
