"""What all kernels do to numbers, in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")
import triton.language as tl

from bistoch.functional.kernels.gpu import is_interpreted, launch
from bistoch.functional.kernels.jit import kernel, rounded
from interpreter import patch_once


@kernel
def round_kernel(given, found, PRECISION: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(found + at, rounded(tl.load(given + at), PRECISION))


def through_the_kernel(given, precision):
    if not is_interpreted():
        pytest.skip("for Triton's interpreter: set TRITON_INTERPRET=1, and hide the GPU")
    patch_once()
    found = torch.empty_like(given)
    launch(round_kernel, 1, given=given, found=found, PRECISION=precision, SIZE=len(given))
    return found


def test_operands_are_rounded_to_the_nearest_of_11_bits():
    given = torch.randn(1024) * torch.logspace(-30, 30, 1024)
    found = through_the_kernel(given, "tf32")
    bits = found.view(torch.int32)
    assert not (bits & 0x1FFF).any()
    # half of the last of 11 bits, and nothing on average
    error = ((found.double() - given.double()) / given.double()).abs()
    assert error.max() <= 2**-11
    assert ((found - given) / given).mean().abs() < 2**-15
    assert (found != given).float().mean() > 0.9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_half_precision_are_kept(dtype):
    given = torch.randn(256).to(dtype).float()
    assert torch.equal(through_the_kernel(given, "tf32"), given)


def test_what_is_no_number_stays_as_it_is():
    nan = torch.tensor([0x7FFFFFFF, -1, 0x7FC00000], dtype=torch.int32).view(torch.float32)
    given = torch.cat([nan, torch.tensor([torch.inf, -torch.inf, 0.0, -0.0, 1.0])])
    found = through_the_kernel(given, "tf32")
    torch.testing.assert_close(found, given, equal_nan=True, atol=0, rtol=0)


def test_other_products_take_all_bits():
    given = torch.randn(64)
    for precision in ("ieee", "tf32x3"):
        assert torch.equal(through_the_kernel(given, precision), given)
