"""Layouts: every token has one place, grids are reordered sequences, tiles bring plans nearer."""

import inspect
import math

import pytest
import torch

import bistoch
from bistoch.functional.monarch.layout import Cut, default_block, lay_out, placed, taken

CPU = torch.device("cpu")
CUTS = [
    (7, 7, Cut((3,))), (7, 7, Cut((3,), "pre")), (5, 11, Cut((4,), "pre", None, (2, 3))),
    (12, 12, Cut((1, 4), grid=(3, 4))), (13, 13, Cut((3, 1), "pre", (3, 4))),
    (14, 14, Cut((2, 3), "post", (3, 4), (2, 2))), (24, 24, Cut((1, 3, 4), grid=(2, 3, 4))),
    (31, 31, Cut((2, 2, 3), "pre", (2, 3, 5), (3, 5))),
]  # fmt: skip


@pytest.mark.parametrize(("n", "m", "cut"), CUTS)
def test_every_token_has_one_place(n, m, cut):
    layout = lay_out(n, m, cut, CPU)
    for places, length in ((layout.members, n), (layout.keys, m)):
        assert sorted(x for x in places.flatten().tolist() if x >= 0) == list(range(length))
        tokens = torch.randn(2, length, 3)
        assert torch.equal(taken(placed(tokens, places), places, length), tokens)
    assert layout.own.shape == (len(layout.members), len(layout.keys))
    assert layout.own.max() < layout.members.shape[1]


@pytest.mark.parametrize(("n", "m", "cut"), CUTS)
def test_the_own_member_is_in_the_block_of_the_same_number(n, m, cut):
    if n != m:
        return
    layout = lay_out(n, m, cut, CPU)
    # without tiles a block of queries and one of keys have the same tokens
    whole = lay_out(n, m, cut._replace(tiles=(1, 1)), CPU)
    block_of = {x: k for k, row in enumerate(whole.keys.tolist()) for x in row if x >= 0}
    for group, row in zip(layout.members.tolist(), layout.own.tolist(), strict=True):
        for keys, member in zip(layout.keys.tolist(), row, strict=True):
            real = [x for x in keys if x >= 0]
            if member >= 0 and group[member] >= 0 and real:
                assert block_of[group[member]] == block_of[real[0]]


def tokens(n, d=8):
    return torch.randn(3, 2, n, d, dtype=torch.float64).unbind()


@pytest.mark.parametrize("name", ["monarch", "elastic_monarch"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_grid_is_a_sequence_in_another_order(name, backend):
    attention = bistoch.OPERATORS[name].attention
    q, k, v = tokens(30)
    rows = attention(q, k, v, grid=(5, 6), block=(1, 6), backend=backend)
    torch.testing.assert_close(rows, attention(q, k, v, block=6, backend=backend))
    order = torch.arange(30).reshape(5, 6).T.flatten()
    columns = attention(q, k, v, grid=(5, 6), block=(5, 1), backend=backend)
    moved = attention(q[:, order], k[:, order], v[:, order], block=5, backend=backend)
    torch.testing.assert_close(columns[:, order], moved)
    # a class token before the grid: rows are the blocks of a sequence that is padded before
    q, k, v = tokens(31)
    rows = attention(q, k, v, grid=(5, 6), pad="pre", backend=backend)
    torch.testing.assert_close(rows, attention(q, k, v, block=6, pad="pre", backend=backend))


@pytest.mark.parametrize("options", [
    {"grid": (5, 6), "block": (2, 3), "pad": "pre"}, {"grid": (2, 5, 3), "block": (2, 3, 1)},
    {"tiles": (2, 3)}, {"grid": (6, 5), "tiles": (3, 2)},
], ids=str)  # fmt: skip
def test_kernels_plans_and_gradients_agree_in_every_layout(options):
    q, k, v = (x.requires_grad_() for x in tokens(31))
    for name in ("monarch", "elastic_monarch"):
        row, found = bistoch.OPERATORS[name], []
        for backend in ("reference", "cpu"):
            result = row.attention(q, k, v, backend=backend, **options)
            grads = torch.autograd.grad(result.sin().sum(), (q, k, v))
            found.append((result, *grads))
            torch.testing.assert_close(row.plan(q, k, backend=backend, **options) @ v, result)
        torch.testing.assert_close(*found, atol=1e-11, rtol=1e-9)


def grid_tokens(grid, noise=0.1):
    """Queries and keys that like their own place on a grid."""
    waves = []
    for size in grid:
        wave = torch.arange(size, dtype=torch.float64)[:, None] * math.pi * torch.arange(1, 9) / 16
        waves.append(torch.cat([wave.sin(), wave.cos()], -1))
    parts = [
        wave.reshape(*(-1 if i == axis else 1 for i in range(len(grid))), 16).expand(*grid, 16)
        for axis, wave in enumerate(waves)
    ]
    place = torch.cat(parts, -1).flatten(0, -2)
    generator = torch.Generator().manual_seed(0)
    more = torch.randn(2, *place.shape, generator=generator, dtype=torch.float64)
    return 1.2 * (place + noise * more)


def error_of(q, k, **options):
    softmax = bistoch.softmax_plan(q, k)
    return ((bistoch.monarch_plan(q, k, **options) - softmax).norm() / softmax.norm()).item()


def test_all_layouts_along_a_video_are_better_than_blocks_across_it():
    grid = (4, 6, 8)
    q, k = grid_tokens(grid)
    blocks = [(1, 1, 8), (1, 6, 1), (4, 1, 1), (1, 6, 8), (4, 1, 8), (4, 6, 1)]
    along = [error_of(q, k, grid=grid, block=block) for block in blocks]
    across = min(error_of(q, k, block=block) for block in (7, 11, 13, 23))
    assert max(along) < 0.6 * across


def test_the_error_falls_with_every_finer_tiling_until_it_is_softmax():
    q, k = grid_tokens((16, 16), noise=0.5)
    tilings = [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 8), (16, 1)]
    errors = [error_of(q, k, grid=(16, 16), tiles=tiles) for tiles in tilings]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-9


def test_the_default_block_has_whole_axes():
    assert default_block(100, 90, None) == (10,)
    assert default_block(257, 257, (16, 16)) == (1, 16)
    # 128 tokens in 16 blocks cost as much as 16 in 128; the first choice is taken
    assert default_block(2048, 2048, (8, 16, 16)) == (1, 1, 16)


attend = inspect.unwrap(bistoch.monarch_attention)


@pytest.mark.parametrize(("options", "error", "sentence"), [
    ({"grid": (5, 7)}, ValueError, r"grid \(5, 7\) has 35 tokens, but there are 30"),
    ({"grid": (30,)}, ValueError, r"grid must be two or three whole numbers.*it is \(30,\)"),
    ({"grid": 30}, TypeError, "grid must be two or three whole numbers"),
    ({"grid": (5, 6), "block": 5}, TypeError, r"block must be 2 whole numbers.*block=\(1, 6\)"),
    ({"block": (5, 6)}, TypeError, "block must be a whole number if there is no grid"),
    ({"tiles": (0, 1)}, ValueError, "tiles must be two whole numbers above 0"),
    ({"tiles": 2}, TypeError, "tiles must be two whole numbers above 0"),
    ({"grid": (5, 4), "block": (1, 4)}, ValueError, "form one block, and one has 4.*there are 10"),
], ids=str)  # fmt: skip
def test_errors_teach(options, error, sentence):
    with pytest.raises(error, match=f"^monarch_attention: .*{sentence}"):
        attend(*tokens(30), **options)
    q, k, v = tokens(30)
    with pytest.raises(ValueError, match="the same tokens, but there are 29 queries and 30 keys"):
        attend(q[:, 1:], k, v, grid=(5, 6))
