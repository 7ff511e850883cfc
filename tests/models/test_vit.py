"""The vision Transformer: patches, pooling, and what balance leaves of a mean."""

import pytest
import torch

from bistoch.analysis import capture
from bistoch.models import ViT, ViTConfig, build_model

TINY = {"image": (6, 10), "classes": 3, "patch": (3, 5), "depth": 2, "dim": 8, "heads": 2}
BALANCED = "sinkhorn(iters=300)"


def make(operator="softmax", **changes):
    return ViT(ViTConfig(**(TINY | changes)), operator).double().eval()


@pytest.mark.parametrize("channels", [1, 3])
def test_patches_are_the_rectangles_of_the_picture(channels):
    model = make(channels=channels)
    images = torch.randn(2, 6, 10, channels, dtype=torch.float64)
    patches = model.patches(images)
    assert patches.shape == (2, 4, 15 * channels)
    for number, (row, column) in enumerate([(0, 0), (0, 5), (3, 0), (3, 5)]):
        wanted = images[:, row : row + 3, column : column + 5].flatten(1)
        assert torch.equal(patches[:, number], wanted)


def test_a_grey_picture_needs_no_axis_of_channels():
    images = torch.randn(2, 6, 10, dtype=torch.float64)
    model = make()
    assert torch.equal(model(images), model(images[..., None]))


def test_stripes_are_as_wide_as_the_picture():
    model = build_model("vit_stripes")
    images = torch.rand(2, 28, 28)
    assert torch.equal(model.patches(images), images.reshape(2, 7, 112))
    with torch.no_grad(), capture(model) as seen:
        assert model(images).shape == (2, 10)
    # seven stripes and the class token, one head, two layers
    assert [plan.plan.shape for plan in seen.plans] == [(2, 1, 8, 8)] * 2
    assert [plan.name for plan in seen.plans] == ["blocks.0.attention", "blocks.1.attention"]
    names = [state.name for state in seen.states]
    assert names == ["blocks.0.input", "blocks.0", "blocks.1"]


def scramble_last(model):
    """Another plan in the last block, with the same values."""
    with torch.no_grad():
        for projection in (model.blocks[-1].attention.query, model.blocks[-1].attention.key):
            projection.weight.normal_(std=0.7)


@pytest.mark.parametrize("depth", [1, 2])
def test_mean_pooling_makes_the_last_balanced_attention_irrelevant(depth):
    images = torch.randn(2, 6, 10, dtype=torch.float64)
    model = make(BALANCED, pool="mean", mlp=0, depth=depth)
    before = model(images)
    before.sum().backward()
    last = model.blocks[-1].attention
    assert last.query.weight.grad.abs().max() < 1e-12
    assert last.value.weight.grad.abs().max() > 1e-3
    plan = last.plan(model.embed(model.patches(images)))
    scramble_last(model)
    assert (last.plan(model.embed(model.patches(images))) - plan).abs().max() > 0.1
    torch.testing.assert_close(model(images), before, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("operator", "changes"),
    [("softmax", {"pool": "mean", "mlp": 0}), (BALANCED, {"pool": "cls", "mlp": 0}),
     (BALANCED, {"pool": "mean", "mlp": 2})],
)  # fmt: skip
def test_it_matters_in_all_other_cases(operator, changes):
    images = torch.randn(2, 6, 10, dtype=torch.float64)
    model = make(operator, **changes)
    before = model(images)
    scramble_last(model)
    assert (model(images) - before).abs().max() > 1e-4


def test_blocks_do_not_share_an_injected_module():
    from bistoch.nn import Elastic

    model = make(Elastic(learn="head", heads=2))
    first, second = (block.attention.operator.lam for block in model.blocks)
    assert first is not second


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"patch": (4, 5)}, r"but image is \(6, 10\) .*\(4, 5\); use for example patch=\(3, 5\)"),
        ({"patch": 3}, "patch is 3; a stripe"),
        ({"heads": 3}, "dim must be divisible by heads"),
        ({"pool": "max"}, "pool must be one of 'cls', 'mean'"),
        ({"depth": 0}, "depth must be at least 1"),
    ],
)
def test_mistakes_are_told(changes, sentence):
    with pytest.raises(ValueError, match=f"^ViT: .*{sentence}"):
        make(**changes)


def test_other_pictures_are_refused():
    with pytest.raises(ValueError, match=r"\(batch, 6, 10, 1\), but their shape is \(2, 6, 11, 1"):
        make()(torch.zeros(2, 6, 11).double())


@pytest.mark.parametrize("operator", ["delta", "causal_elastic(lam=0.5)"])
def test_a_class_token_that_sees_nothing_is_refused(operator):
    with pytest.raises(ValueError, match="which sees no other under the causal operator"):
        make(operator)
    # the mean of all tokens feels every patch
    model, picture = make(operator, pool="mean"), torch.rand(1, 6, 10).double()
    changed = picture.clone()
    changed[:, -1, -1] += 1
    assert not torch.equal(model(picture), model(changed))
