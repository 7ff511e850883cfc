import pytest
import torch

from bistoch.functional.elastic.triton import blocks
from bistoch.functional.kernels.gpu import is_interpreted

# in Triton's interpreter if there is no GPU
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _quick_interpreter(request):
    on_device = request.node.get_closest_marker("gpu") is not None
    if DEVICE != "cpu" and not on_device and not is_interpreted():
        pytest.skip("for Triton's interpreter: set TRITON_INTERPRET=1, and hide the GPU")
    if DEVICE == "cpu":
        pytest.importorskip("triton")
        from interpreter import patch_once

        patch_once()


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 tokens, so that few tokens are several of them; no head is a short one."""
    monkeypatch.setattr(blocks, "STRIP_TOKENS", {True: 0, False: 0})
    _small(monkeypatch)


@pytest.fixture
def fused(monkeypatch):
    """Row and column steps in one kernel, with tiles of 16 queries that two programs share."""
    monkeypatch.setattr(blocks, "STRIP", (16, 16))
    monkeypatch.setattr(blocks, "BUSY", 4)
    _small(monkeypatch)


def _small(monkeypatch):
    from bistoch.functional.elastic.triton import differentiate, launch

    for module in (launch, differentiate):
        monkeypatch.setattr(module, "blocks_of", lambda *_: blocks.Blocks(16, 16, 4, 1))
    monkeypatch.setattr(blocks, "LARGEST_HEAD", 0)
    monkeypatch.setattr(blocks, "LARGEST_SINGLE_HEAD", 0)


@pytest.fixture(params=["long", "fused", "short"])
def form(request):
    """All forms of the kernels; those of the long and of the fused one have several blocks."""
    if request.param != "short":
        request.getfixturevalue("small_blocks" if request.param == "long" else "fused")
    return request.param


@pytest.fixture
def ordered_products(monkeypatch):
    """Scores in the millions are the same bits in every pass; a device has that by its units."""
    if not torch.cuda.is_available():
        from interpreter import add_in_order

        add_in_order(monkeypatch)


@pytest.fixture
def truncated_products(monkeypatch):
    """What matrix units of NVIDIA are assumed to do to operands of more than 11 bits."""
    from interpreter import truncate_operands

    truncate_operands(monkeypatch)
